"""Reassignments: begun, continued, completed or cancelled, across failures and failovers."""

import pytest

from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.partition_reassignment import cancel, reassign
from lakelog.replication.errors import (
    EligibleLeadersNotAvailableException,
    InvalidReplicaAssignmentException,
    NoReassignmentInProgressException,
    UnknownTopicOrPartitionException,
)
from tests.controller.contexts import NOBODY, Active, changed, context, errors, partition, replica, tp

NEW, ONLINE, OFFLINE, GONE = "NewReplica", "OnlineReplica", "OfflineReplica", "NonExistentReplica"
MOVING = partition((4, 2, 1), 1, (1, 2), adding=(4,), removing=(1,))


def move(active, *target, number=0, request_id="request-1"):
    name = f"flights-{number}"
    decision = active.ask("alter_partition_reassignments", request_id, reassignments={name: list(target)})
    assert errors(decision) == {name: None}
    return decision


def assignment(row):
    return row.replicas, row.adding_replicas, row.removing_replicas


@pytest.mark.parametrize("fails_over", [False, True], ids=["one controller", "another after each step"])
def test_ra_01_ra_02_ra_03_fo_04_a_reassignment_runs_from_request_to_completion(fails_over):
    """(1, 2) -> (4, 2): 4 is added and catches up. Then 1, the leader, is removed."""
    active = Active(context(partition((1, 2)), live=(1, 2, 4)))
    move(active, 4, 2)
    row = active.row()
    assert (assignment(row), row.leader, row.isr, row.leader_epoch) == (((4, 2, 1), (4,), (1,)), 1, (1, 2), 6)
    assert [active.state(b) for b in (1, 2, 4)] == [ONLINE, ONLINE, NEW]
    assert not fails_over or not active.fail_over().touches_metadata
    active.isr(1, 2)
    assert not active.ask("elect_leaders", election_type="preferred", partitions=[]).touches_metadata, "it has to wait"
    active.isr(1, 2, 4)
    decision = active.fail_over() if fails_over else active.ask("elect_leaders", election_type="unclean", partitions=[])
    row = active.row()
    assert changed(decision) == {"flights-0": (4, (2, 4))}
    assert (assignment(row), row.leader_epoch) == (((4, 2), (), ()), 7)
    assert [active.state(b) for b in (1, 2, 4)] == [GONE, ONLINE, ONLINE]
    assert not active.fail_over().touches_metadata


@pytest.mark.parametrize(
    ("target", "live", "leader", "isr"),
    [
        pytest.param((2, 1, 3), (1, 2, 3), 1, (1, 2, 3), id="another order"),
        pytest.param((1, 2), (1, 2, 3), 1, (1, 2), id="fewer"),
        pytest.param((3,), (1, 2, 3), 3, (3,), id="the leader is removed"),
    ],
)
def test_ra_03_a_reassignment_without_new_replicas_is_done_in_one_commit(target, live, leader, isr):
    active = Active(context(partition(), live=live))
    move(active, *target)
    row = active.row()
    assert (assignment(row), row.leader, row.isr, row.leader_epoch) == ((target, (), ()), leader, isr, 6)
    assert [active.state(b) for b in (1, 2, 3)] == [ONLINE if b in target else GONE for b in (1, 2, 3)]


def test_ra_01_a_reassignment_to_the_same_replicas_changes_nothing():
    assert not move(Active(context(partition())), 1, 2, 3).touches_metadata


@pytest.mark.parametrize(
    ("registration", "target", "given", "error"),
    [
        pytest.param(partition(), (1, 9), {}, InvalidReplicaAssignmentException, id="an unknown broker"),
        pytest.param(partition((1, 2)), (1, 3), {"live": (1, 2)}, InvalidReplicaAssignmentException, id="unknown"),
        pytest.param(
            partition((1, 2)),
            (1, 3),
            {"live": (1, 2), "registered": (1, 2, 3)},
            InvalidReplicaAssignmentException,
            id="a dead broker is added",
        ),
        pytest.param(
            MOVING, (4, 2), {"live": (1, 2)}, InvalidReplicaAssignmentException, id="one that is being added has died"
        ),
        pytest.param(partition(), (1, 2, 1), {}, InvalidReplicaAssignmentException, id="a broker twice"),
        pytest.param(partition(), (), {}, InvalidReplicaAssignmentException, id="no broker"),
        pytest.param(
            partition((4, 2, 1), 4, (4,), adding=(4,), removing=(1,)),
            (2, 3),
            {"live": (1, 2, 3, 4)},
            EligibleLeadersNotAvailableException,
            id="only who would be dropped is in sync",
        ),
        pytest.param(
            partition(), (2, 3), {"deleting": ("flights",)}, UnknownTopicOrPartitionException, id="it is being deleted"
        ),
    ],
)
def test_ra_01_td_05_an_invalid_reassignment_is_refused_and_changes_nothing(registration, target, given, error):
    decision = Decision(context(registration, **given), "a test")
    with pytest.raises(error, match=r"flights-0|partition 0"):
        reassign(decision, tp(), target)
    assert (decision.changed, decision.state_changes) == ({}, [])


@pytest.mark.parametrize(
    ("registered", "words"),
    [
        ((1, 2), r"partition 0 has replicas \[1, 3\]: 3 unknown; brokers: 1, 2"),
        ((1, 2, 3), r"partition 0 gets replicas on 3: 3 not alive; alive: 1, 2"),
    ],
)
def test_ra_01_an_unknown_broker_and_a_dead_one_have_different_errors(registered, words):
    decision = Decision(context(partition((1, 2)), live=(1, 2), registered=registered), "a test")
    with pytest.raises(InvalidReplicaAssignmentException, match=words):
        reassign(decision, tp(), (1, 3))


@pytest.mark.parametrize("target", [(1, 2), (3, 1, 2), (4, 3, 2, 1)], ids=["fewer", "another order", "one more"])
def test_ra_01_a_replica_that_stays_need_not_be_alive(target):
    """Broker 2 is dead, and was in sync when it died as the last but one."""
    active = Active(context(partition(isr=(1, 3)), live=(1, 3, 4), registered=(1, 2, 3, 4)))
    move(active, *target)
    assert set(target) <= set(active.row().replicas)


@pytest.mark.parametrize(
    ("target", "row", "leader", "isr", "states"),
    [
        pytest.param((4, 2), ((4, 2, 1), (4,), (1,)), 1, (1, 2), {4: NEW}, id="the same"),
        pytest.param((3, 2), ((3, 2, 1), (3,), (1,)), 1, (1, 2), {3: NEW, 4: GONE}, id="another instead"),
        pytest.param((3, 4), ((3, 4, 2, 1), (3, 4), (2, 1)), 1, (1, 2), {3: NEW, 4: NEW}, id="one more"),
        pytest.param((3,), ((3, 2, 1), (3,), (2, 1)), 1, (1, 2), {3: NEW, 4: GONE}, id="fewer, and another"),
        pytest.param((1, 2), ((1, 2), (), ()), 1, (1, 2), {4: GONE}, id="back"),
        pytest.param((2,), ((2,), (), ()), 2, (2,), {1: GONE, 4: GONE}, id="back, and fewer"),
        pytest.param((1, 2, 4), ((1, 2, 4), (4,), ()), 1, (1, 2), {4: NEW}, id="nobody is removed any more"),
    ],
)
@pytest.mark.parametrize("fails_over", [False, True], ids=["one controller", "another meanwhile"])
def test_ra_01_a_reassignment_that_is_under_way_is_replaced(target, row, leader, isr, states, fails_over):
    """(1, 2) -> (4, 2) is under way. The new move goes from the original replicas to the new target."""
    active = Active(context(partition((1, 2)), live=(1, 2, 3, 4)))
    move(active, 4, 2)
    if fails_over:
        active.fail_over()
        states = {b: ONLINE if b == 4 and state == NEW else state for b, state in states.items()}
    before = active.row()
    decision = move(active, *target, request_id="request-2")
    after = active.row()
    assert (assignment(after), after.leader, after.isr) == (row, leader, isr)
    assert {broker: active.state(broker) for broker in states} == states
    assert after.leader_epoch == before.leader_epoch + (target != (4, 2))
    if target == (4, 2):
        assert decision.outcomes["flights-0"].message == "is being moved to brokers [4, 2] already"


@pytest.mark.parametrize(
    ("leader", "isr", "live", "expected"),
    [
        pytest.param(1, (1, 2, 4), (1, 2, 3, 4), (1, (1, 2)), id="who was added leaves the ISR"),
        pytest.param(4, (1, 2, 4), (1, 2, 3, 4), (2, (1, 2)), id="and leads no more"),
        pytest.param(4, (1, 4), (2, 3, 4), None, id="nobody else may lead"),
        pytest.param(NOBODY, (1, 4), (2, 3), (NOBODY, (1,)), id="nobody leads"),
        pytest.param(NOBODY, (4,), (2, 3), None, id="nobody leads, and the ISR would be empty"),
    ],
)
def test_ra_01_le_05_a_replica_dropped_by_a_replacement_neither_leads_nor_is_in_sync(leader, isr, live, expected):
    moving = partition((4, 2, 1), leader, isr, adding=(4,), removing=(1,))
    decision = Active(context(moving, live=live)).ask(
        "alter_partition_reassignments", reassignments={"flights-0": [3, 2]}
    )
    found = decision.changed.get(tp())
    assert (found and (found.leader, found.isr)) == expected
    assert errors(decision) == {"flights-0": None if expected else "EligibleLeadersNotAvailableException"}


def test_ra_01_ra_03_a_replacement_is_carried_on_to_its_end():
    active = Active(context(partition((1, 2)), live=(1, 2, 3, 4)))
    move(active, 4, 2)
    active.isr(1, 2, 4)
    move(active, 3, 1)
    active.isr(1, 2, 3)
    active.brokers()
    row = active.row()
    assert (assignment(row), row.leader, set(row.isr)) == (((3, 1), (), ()), 1, {1, 3})


def test_ra_01_each_partition_of_a_request_has_its_own_outcome():
    active = Active(context(partition((1, 2)), partition((2, 3), number=1), live=(1, 2, 3)))
    wanted = {"flights-0": [2, 1], "flights-1": [2, 9], "flights-7": [1], "ghosts-0": None, "flights-1 ": [1]}
    decision = active.ask("alter_partition_reassignments", reassignments=wanted)
    unknown = "UnknownTopicOrPartitionException"
    assert errors(decision) == {
        "flights-0": None,
        "flights-1": "InvalidReplicaAssignmentException",
        "flights-7": unknown,
        "ghosts-0": unknown,
        "flights-1 ": unknown,
    }
    assert set(changed(decision)) == {"flights-0"}


def test_ra_02_reassignments_of_several_partitions_complete_independently():
    active = Active(context(*(partition((1, 2), number=n) for n in range(3)), live=(1, 2, 3, 4)))
    for number in range(3):
        move(active, 3, 4, number=number, request_id=f"request-{number}")
    active.isr(1, 2, 3, 4, number=1)
    assert set(changed(active.brokers())) == {"flights-1"}
    assert [active.row(n).replicas for n in range(3)] == [(3, 4, 1, 2), (3, 4), (3, 4, 1, 2)]
    active.isr(1, 2, 3, 4, number=0)
    active.isr(1, 3, 4, number=2)
    assert changed(active.brokers()) == {"flights-0": (3, (3, 4)), "flights-2": (3, (3, 4))}


@pytest.mark.parametrize("kind", ["another request", "brokers", "IsrChangeNotification"])
def test_li_05_ra_03_any_event_that_reads_the_isr_completes_the_reassignment(kind):
    """The commit of another event may be the first to read a leader's ISR change. No other event reports it."""
    from lakelog.replication.controller.events import IsrChangeNotification

    active = Active(context(partition((1, 2)), live=(1, 2, 3)))
    move(active, 3, 2)
    active.isr(1, 2, 3)
    match kind:
        case "another request":
            active.ask("create_topic", topic="other", partitions=1)
        case "brokers":
            active.brokers(bounced=())
        case _:
            active.process(IsrChangeNotification())
    assert active.row().replicas == (3, 2)


@pytest.mark.parametrize(
    ("leader", "isr", "live", "outcome"),
    [
        pytest.param(1, (1, 2), (1, 2, 4), (1, (1, 2)), id="before 4 has caught up"),
        pytest.param(1, (1, 4), (1, 2, 4), (1, (1,)), id="4 leaves the ISR"),
        pytest.param(4, (4, 2), (1, 2, 4), (2, (2,)), id="4 leads and makes place"),
    ],
)
def test_ra_01_a_cancelled_reassignment_restores_the_assignment(leader, isr, live, outcome):
    active = Active(context(partition((4, 2, 1), leader, isr, adding=(4,), removing=(1,)), live=live))
    decision = active.ask("alter_partition_reassignments", reassignments={"flights-0": None})
    assert changed(decision) == {"flights-0": outcome}
    assert assignment(active.row()) == ((2, 1), (), ())
    assert [active.state(b) for b in (1, 2, 4)] == [ONLINE, ONLINE, GONE]


@pytest.mark.parametrize(
    ("registration", "live", "error"),
    [
        pytest.param(partition(), (1, 2, 3), NoReassignmentInProgressException, id="none is under way"),
        pytest.param(
            partition((4, 2, 1), 4, (4,), adding=(4,)), (1, 2, 4), EligibleLeadersNotAvailableException, id="nobody"
        ),
    ],
)
def test_ra_01_an_impossible_cancellation_is_refused_and_changes_nothing(registration, live, error):
    decision = Decision(context(registration, live=live), "a test")
    with pytest.raises(error, match="flights-0"):
        cancel(decision, tp())
    assert decision.changed == {}


def test_ra_03_bd_01_a_reassignment_continues_under_a_new_leader():
    active = Active(context(partition((1, 2)), live=(1, 2, 3)))
    move(active, 3, 2)
    assert changed(active.brokers(gone=(1,))) == {"flights-0": (2, (2,))}
    active.isr(2, 3)
    assert changed(active.brokers()) == {"flights-0": (2, (2, 3))}
    assert (active.row().replicas, active.state(1)) == ((3, 2), GONE)


def test_bu_02_ra_02_a_new_replica_may_fail_and_return_during_a_reassignment():
    active = Active(context(partition((1, 2)), live=(1, 2, 3)))
    move(active, 3, 2)
    active.brokers(gone=(3,))
    assert (active.state(3), active.row().leader) == (OFFLINE, 1)
    active.brokers(come=(3,))
    active.isr(1, 2, 3)
    assert changed(active.brokers()) == {"flights-0": (2, (2, 3))} or active.row().leader == 3
    assert (active.row().replicas, active.state(3)) == ((3, 2), ONLINE)


def test_bu_02_a_move_that_waits_for_a_live_leader_is_completed_when_one_starts():
    """The whole target is in sync and dead. The move completes when the first of them is back."""
    active = Active(context(partition((3, 1), 1, (1, 3), adding=(3,), removing=(1,)), live=(1,)))
    assert not active.brokers().touches_metadata
    assert changed(active.brokers(thawed=(3,))) == {"flights-0": (3, (3,))}


def test_ra_02_an_added_replica_outside_the_isr_does_not_lead():
    """The ISR is dead: the move waits, whoever of its target lives."""
    active = Active(context(partition((3, 1), NOBODY, (1,), adding=(3,), removing=(1,)), live=(3,)))
    assert not active.fail_over().touches_metadata
    assert replica(3) in active.context.replica_states
