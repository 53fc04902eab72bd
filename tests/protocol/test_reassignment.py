"""The partition's row during a reassignment."""

import itertools

import pytest

from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.reassignment import (
    begin_reassignment,
    cancel_reassignment,
    complete_reassignment,
    is_reassigning,
    may_complete,
    original_replicas,
    target_replicas,
)

NOBODY = None


def partition(replicas=(1, 2, 3), leader=1, isr=(1, 2, 3), adding=(), removing=()):
    """A partition with every other field set, so that the tests notice a lost field."""
    return PartitionRegistration("flights", "id-1", 4, replicas, leader, 5, isr, 7, 2, adding, removing)


@pytest.mark.parametrize(
    ("target", "replicas", "adding", "removing"),
    [
        pytest.param((1, 2, 3), (1, 2, 3), (), (), id="the same"),
        pytest.param((3, 1, 2), (3, 1, 2), (), (), id="another order"),
        pytest.param((4, 1, 2), (4, 1, 2, 3), (4,), (3,), id="one for another"),
        pytest.param((4, 5, 6), (4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3), id="all others"),
        pytest.param((1, 2, 3, 4), (1, 2, 3, 4), (4,), (), id="more"),
        pytest.param((2,), (2, 1, 3), (), (1, 3), id="fewer"),
    ],
)
def test_ra_02_the_assignment_is_the_target_followed_by_the_replicas_to_remove(target, replicas, adding, removing):
    moving = begin_reassignment(partition(), target)
    assert moving == partition(replicas, adding=adding, removing=removing), "leader, ISR and epochs are as they were"
    assert is_reassigning(moving) is bool(adding or removing)
    assert target_replicas(moving) == target
    assert set(original_replicas(moving)) == {1, 2, 3}


@pytest.mark.parametrize(
    ("target", "replicas", "adding", "removing"),
    [
        pytest.param((4, 1, 2), (4, 1, 2, 3), (4,), (3,), id="the same"),
        pytest.param((5, 1, 2), (5, 1, 2, 3), (5,), (3,), id="another instead"),
        pytest.param((1, 2, 3), (1, 2, 3), (), (), id="back"),
        pytest.param((3, 5), (3, 5, 1, 2), (5,), (1, 2), id="who was removed stays"),
        pytest.param((4, 5, 6), (4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3), id="all others"),
    ],
)
def test_ra_02_a_replaced_reassignment_starts_from_the_original_assignment(target, replicas, adding, removing):
    moving = begin_reassignment(partition((4, 1, 2, 3), adding=(4,), removing=(3,)), target)
    assert moving == partition(replicas, adding=adding, removing=removing)
    assert set(original_replicas(moving)) == {1, 2, 3}


@pytest.mark.parametrize(
    ("isr", "expected"),
    [
        pytest.param((1, 2, 3), False, id="nobody that was added"),
        pytest.param((1, 2, 3, 4), False, id="one of two that were added"),
        pytest.param((4, 5, 1), False, id="one that stays is out of sync"),
        pytest.param((5, 4, 2, 1, 3), True, id="all, in any order"),
        pytest.param((4, 5, 2), True, id="who is removed does not count"),
    ],
)
def test_ra_03_a_reassignment_is_complete_once_all_target_replicas_are_in_sync(isr, expected):
    moving = begin_reassignment(partition(), (4, 5, 2))
    assert (
        may_complete(partition(moving.replicas, 1, isr, moving.adding_replicas, moving.removing_replicas)) is expected
    )


@pytest.mark.parametrize(
    ("leader", "live", "outcome"),
    [
        pytest.param(2, {1, 2, 3, 4}, (2, (4, 2)), id="the leader is of the target: it stays"),
        pytest.param(1, {1, 2, 3, 4}, (4, (4, 2)), id="the leader is removed: the first of the target leads"),
        pytest.param(1, {1, 2, 3}, (2, (4, 2)), id="the first of the target is dead"),
        pytest.param(2, {1, 3, 4}, (4, (4, 2)), id="the leader is of the target and dead"),
        pytest.param(NO_LEADER, {1, 2}, (2, (4, 2)), id="nobody leads"),
        pytest.param(1, {1, 3}, NOBODY, id="nobody of the target lives"),
    ],
)
def test_ra_03_le_05_a_completed_reassignment_leaves_the_target(leader, live, outcome):
    done = complete_reassignment(partition((4, 2, 1, 3), leader, (1, 4, 2), (4,), (1, 3)), live)
    assert (done and (done.leader, done.isr)) == outcome
    if done:
        assert (done.replicas, done.adding_replicas, done.removing_replicas) == ((4, 2), (), ())
        assert (done.leader_epoch, done.partition_epoch) == (6, 8)


@pytest.mark.parametrize(
    ("leader", "isr", "live", "outcome"),
    [
        pytest.param(1, (1, 2, 3, 4), {1, 2, 3, 4}, (1, (1, 2, 3)), id="who was added leaves the ISR"),
        pytest.param(4, (4, 3, 1), {1, 2, 3, 4}, (1, (3, 1)), id="a leader that was added makes place"),
        pytest.param(4, (4,), {1, 2, 3, 4}, NOBODY, id="only who was added is in sync"),
        pytest.param(4, (4, 3), {1, 2, 4}, NOBODY, id="who is in sync is dead"),
    ],
)
def test_ra_01_a_cancelled_reassignment_leaves_the_original_assignment(leader, isr, live, outcome):
    back = cancel_reassignment(partition((4, 1, 2, 3), leader, isr, (4,), (2, 3)), live)
    assert (back and (back.leader, back.isr)) == outcome
    if back:
        assert (back.replicas, back.adding_replicas, back.removing_replicas) == ((1, 2, 3), (), ())


BROKERS = (1, 2, 3, 4)
ASSIGNMENTS = [order for size in (1, 2, 3) for order in itertools.permutations(BROKERS, size)]


def subsets(brokers):
    return [chosen for size in range(len(brokers) + 1) for chosen in itertools.combinations(brokers, size)]


def test_ra_03_over_all_small_worlds_a_reassignment_ends_at_the_target_under_a_live_leader_in_sync():
    ended = 0
    for target, isr, live in itertools.product(ASSIGNMENTS, subsets((1, 2)), subsets(BROKERS)):
        if not isr:
            continue
        moving = begin_reassignment(partition((1, 2), isr[0], isr), target)
        caught_up = partition(moving.replicas, isr[0], (*isr, *moving.adding_replicas), *moving_of(moving))
        for settled, replicas in (
            (complete_reassignment(caught_up, live), target),
            (cancel_reassignment(caught_up, live), original_replicas(caught_up)),
        ):
            able = [broker for broker in replicas if broker in caught_up.isr and broker in live]
            assert (settled is None) == (not able), (target, isr, live)
            if settled:
                ended += 1
                assert settled.replicas == replicas
                assert settled.leader in able
                assert set(settled.isr) == set(replicas) & set(caught_up.isr)
                assert not is_reassigning(settled)
    assert ended


def moving_of(registration):
    return registration.adding_replicas, registration.removing_replicas
