import itertools
from dataclasses import replace

import pytest

from lakelog.replication.protocol.elections import (
    elect_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
    is_unclean,
    new_partition,
    replica_offline,
    with_leader,
    with_replicas,
)
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration

BROKERS = (1, 2, 3)
STRANGER = 9
TARGET = (3, 1)
NOBODY = None
UNCHANGED = "unchanged"


def partition(leader, isr, replicas=(2, 3, 1)):
    """A partition with every other field set, so that the tests notice a lost field."""
    return PartitionRegistration("flights", "id-1", 4, replicas, leader, 5, isr, 7, 2, (8,), (3,))


def expected(before, outcome):
    """`before` with the leader and ISR of `outcome` and both epochs one higher; `before` itself if unchanged."""
    if outcome in (NOBODY, UNCHANGED):
        return before if outcome == UNCHANGED else None
    leader, isr = outcome
    return replace(before, leader=leader, isr=isr, leader_epoch=6, partition_epoch=8)


@pytest.mark.parametrize(
    ("live", "leader", "isr"),
    [
        pytest.param({1, 2, 3}, 2, (2, 3, 1), id="preferred replica leads"),
        pytest.param({1, 3}, 3, (3, 1), id="first live one leads, the order of AR is kept"),
        pytest.param({1, 9}, 1, (1,), id="a live broker outside AR has no part"),
        pytest.param((), NO_LEADER, (), id="nobody alive"),
    ],
)
def test_le_03_a_new_partition_is_led_by_its_first_live_replica(live, leader, isr):
    assert new_partition("flights", "id-1", 4, [2, 3, 1], live) == PartitionRegistration(
        topic="flights",
        topic_id="id-1",
        partition=4,
        replicas=(2, 3, 1),
        leader=leader,
        leader_epoch=0,
        isr=isr,
        partition_epoch=0,
    )


@pytest.mark.parametrize("unclean_allowed", [False, True])
@pytest.mark.parametrize(
    ("isr", "live", "outcome"),
    [
        pytest.param((1, 2, 3), {1, 2, 3}, (2, (1, 2, 3)), id="AR decides who is first, the ISR keeps its order"),
        pytest.param((1, 3), {1, 2, 3}, (3, (1, 3)), id="the preferred one is not in sync"),
        pytest.param((1, 2, 3), {1, 3}, (3, (1, 3)), id="the preferred one is dead"),
        pytest.param((2, 3), {1, 3}, (3, (3,)), id="dead members leave the ISR, live outsiders do not join"),
    ],
)
def test_le_01_an_offline_partition_elects_a_live_isr_member(isr, live, outcome, unclean_allowed):
    before = partition(NO_LEADER, isr)
    after = elect_offline(before, live, unclean_allowed)
    assert after == expected(before, outcome)
    assert not is_unclean(before, after)


@pytest.mark.parametrize(
    ("live", "outcome"),
    [
        pytest.param({1, 3}, (3, (3,)), id="first live replica, and nobody else is in sync"),
        pytest.param({1}, (1, (1,)), id="the last of AR"),
        pytest.param({9}, NOBODY, id="a live broker outside AR has no part"),
        pytest.param((), NOBODY, id="nobody alive"),
    ],
)
def test_le_02_an_offline_partition_elects_outside_the_isr_only_if_allowed(live, outcome):
    before = partition(NO_LEADER, (2,))
    after = elect_offline(before, live, unclean_allowed=True)
    assert after == expected(before, outcome)
    assert after is None or is_unclean(before, after)
    assert elect_offline(before, live, unclean_allowed=False) is None


@pytest.mark.parametrize(
    ("isr", "live", "outcome"),
    [
        pytest.param((3, 2), {2, 3}, (2, (3, 2)), id="live and in sync"),
        pytest.param((2, 3, 1), {2, 3}, (2, (2, 3, 1)), id="a dead member stays in the ISR"),
        pytest.param((3, 1), {1, 2, 3}, NOBODY, id="not in sync"),
        pytest.param((2, 3), {1, 3}, NOBODY, id="dead: nobody else is taken"),
    ],
)
def test_le_05_a_preferred_election_elects_the_first_replica_if_it_is_in_sync(isr, live, outcome):
    before = partition(3, isr)
    assert elect_preferred(before, live) == expected(before, outcome)


@pytest.mark.parametrize(
    ("target", "live", "outcome"),
    [
        pytest.param((1, 2), {1, 2, 3}, (1, (2, 3, 1)), id="the order of the target decides, not that of AR"),
        pytest.param((1, 3), {2, 3}, (3, (2, 3, 1)), id="the first is dead; a dead member stays in the ISR"),
        pytest.param((4, 3), {2, 3, 4}, (3, (2, 3, 1)), id="the first is not in sync"),
        pytest.param((4, 1), {2, 3, 4}, NOBODY, id="one is not in sync, the other is dead"),
    ],
)
def test_le_05_a_reassigned_partition_elects_from_its_target(target, live, outcome):
    before = partition(2, (2, 3, 1))
    assert elect_reassigned(before, target, live) == expected(before, outcome)


@pytest.mark.parametrize("counted_as_live", [True, False], ids=["live counts who shuts down", "live does not"])
@pytest.mark.parametrize(
    ("isr", "live", "shutting_down", "outcome"),
    [
        pytest.param((1, 3, 2), {1, 3}, {2}, (3, (1, 3)), id="next in AR, the ISR without who shuts down"),
        pytest.param((1, 2), {1, 3}, {2}, (1, (1,)), id="who is not in sync is passed over"),
        pytest.param((1, 2, 3), {1}, {2, 3}, (1, (1,)), id="two shut down"),
        pytest.param((1, 2, 3), {1}, {2}, (1, (1, 3)), id="a dead member stays in the ISR"),
        pytest.param((2,), {1, 3}, {2}, NOBODY, id="the only member shuts down"),
        pytest.param((2, 3), {1}, {2}, NOBODY, id="the other member is dead"),
        pytest.param((1, 2, 3), (), {1, 2, 3}, NOBODY, id="everybody shuts down"),
    ],
)
def test_le_04_a_controlled_shutdown_elects_another_isr_member(isr, live, shutting_down, outcome, counted_as_live):
    before = partition(2, isr)
    live = {*live, *shutting_down} if counted_as_live else live
    assert elect_controlled_shutdown(before, live, shutting_down) == expected(before, outcome)


@pytest.mark.parametrize(
    ("leader", "isr", "outcome"),
    [
        pytest.param(3, (2, 3, 1), (3, (3, 1)), id="a follower leaves the ISR"),
        pytest.param(2, (2, 3, 1), (NO_LEADER, (3, 1)), id="a leader leaves the ISR and leads no more"),
        pytest.param(2, (2,), (NO_LEADER, (2,)), id="the last member stays and leads no more"),
        pytest.param(NO_LEADER, (2, 1), (NO_LEADER, (1,)), id="a member leaves an offline partition"),
        pytest.param(NO_LEADER, (2,), UNCHANGED, id="the last member of an offline partition"),
        pytest.param(3, (3, 1), UNCHANGED, id="a follower that is not in sync"),
        pytest.param(NO_LEADER, (), UNCHANGED, id="a partition without a leader yet"),
    ],
)
def test_rs_03_an_offline_replica_leaves_the_isr_unless_it_is_the_last(leader, isr, outcome):
    before = partition(leader, isr)
    after = replica_offline(before, 2)
    assert after == expected(before, outcome)
    assert (after is before) == (outcome == UNCHANGED)


@pytest.mark.parametrize(
    ("leader", "isr", "replicas", "live", "outcome"),
    [
        pytest.param(2, (2, 3), (4, 2, 3, 1), {1, 2, 3, 4}, (2, (2, 3)), id="added: joins the ISR later"),
        pytest.param(2, (2, 3, 1), (1, 2), {1, 2, 3}, (2, (2, 1)), id="removed: leaves the ISR, the leader stays"),
        pytest.param(2, (2, 3, 1), (1, 3), {1, 2, 3}, (1, (3, 1)), id="the leader is removed: first of the new ones"),
        pytest.param(2, (2, 3, 1), (1, 3), {2, 3}, (3, (3, 1)), id="the first of the new ones is dead"),
        pytest.param(NO_LEADER, (2, 3), (4, 3), {3, 4}, (3, (3,)), id="offline: the first live one in sync leads"),
        pytest.param(2, (2, 3), (4, 5), {2, 3, 4, 5}, NOBODY, id="none of them is in sync"),
        pytest.param(2, (2, 3), (4, 3), {2, 4}, NOBODY, id="who is in sync is dead"),
    ],
)
def test_ra_02_other_replicas_keep_or_elect_a_leader_in_sync(leader, isr, replicas, live, outcome):
    before = partition(leader, isr)
    assert with_replicas(before, replicas, live) == expected(replace(before, replicas=replicas), outcome)


def test_le_06_an_election_begins_an_epoch_even_if_it_changes_nothing_else():
    before = partition(2, (2, 3, 1))
    assert with_leader(before, 2, [2, 3, 1]) == expected(before, (2, (2, 3, 1)))
    assert elect_preferred(before, {2}) == expected(before, (2, (2, 3, 1)))


@pytest.mark.parametrize(
    ("leader", "isr", "unclean"),
    [
        pytest.param(3, (2, 3), False, id="was in sync"),
        pytest.param(1, (2, 3), True, id="was not in sync"),
        pytest.param(NO_LEADER, (2, 3), False, id="nobody was elected"),
    ],
)
def test_le_02_an_election_outside_the_isr_is_unclean(leader, isr, unclean):
    assert is_unclean(partition(2, isr), partition(leader, (leader,))) is unclean


def subsets(brokers):
    return [c for size in range(len(brokers) + 1) for c in itertools.combinations(brokers, size)]


def in_sync(registration, candidates):
    return [broker for broker in candidates if broker in registration.isr]


# Every partition of three replicas that the protocol allows: any order of AR, any ISR, led by a member or by nobody.
WORLDS = [
    (partition(leader, isr, replicas), live)
    for replicas in itertools.permutations(BROKERS)
    for isr in subsets(BROKERS)
    for leader in (*isr, NO_LEADER)
    for live in subsets((*BROKERS, STRANGER))
]

# strategy: (rule, who may be elected if live, first choice first)
ELECTIONS = {
    "offline": (lambda r, live: elect_offline(r, live, False), lambda r: in_sync(r, r.replicas)),
    "unclean": (lambda r, live: elect_offline(r, live, True), lambda r: [*in_sync(r, r.replicas), *r.replicas]),
    "preferred": (elect_preferred, lambda r: in_sync(r, r.replicas[:1])),
    "reassigned": (lambda r, live: elect_reassigned(r, TARGET, live), lambda r: in_sync(r, TARGET)),
    "controlled shutdown": (
        lambda r, live: elect_controlled_shutdown(r, live, {1}),
        lambda r: [broker for broker in in_sync(r, r.replicas) if broker != 1],
    ),
}
CHANGES = {
    "replica offline": lambda r, _: replica_offline(r, 1),
    "with replicas": lambda r, live: with_replicas(r, TARGET, live),
    **{name: rule for name, (rule, _) in ELECTIONS.items()},
}
MAY_BE_UNCLEAN = {"unclean"}


@pytest.mark.parametrize("strategy", ELECTIONS)
def test_le_01_the_first_eligible_replica_is_elected(strategy):
    rule, candidates = ELECTIONS[strategy]
    for before, live in WORLDS:
        able = [broker for broker in candidates(before) if broker in live]
        after = rule(before, live)
        assert (after.leader if after else NOBODY) == (able[0] if able else NOBODY), (before, live)


@pytest.mark.parametrize("change", CHANGES)
def test_le_06_every_change_of_a_partition_raises_its_epochs_by_one(change):
    changed = 0
    for before, live in WORLDS:
        after = CHANGES[change](before, live)
        if after is None or after is before:
            continue
        changed += 1
        case = f"{before} with {live} live became {after}"
        assert after.leader == NO_LEADER or after.leader in after.isr, case
        assert set(after.isr) <= set(after.replicas), case
        assert after.isr, case
        assert after.leader_epoch == before.leader_epoch + 1, case
        assert after.partition_epoch == before.partition_epoch + 1, case
        assert change in MAY_BE_UNCLEAN or not is_unclean(before, after), case
        assert is_unclean(before, after) or set(after.isr) <= set(before.isr), case
    assert changed
