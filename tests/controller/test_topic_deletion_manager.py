"""Topics are deleted in order: first every replica, then the partitions, then the topic."""

from dataclasses import replace

import pytest

from lakelog.replication.controller.controller_context import BrokerView, ControllerContext
from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.events import BrokerModifications, ControllerChange, IsrChangeNotification
from tests.controller.contexts import Active, changed, context, errors, partition, tp

ONLINE, OFFLINE, INELIGIBLE = "OnlineReplica", "OfflineReplica", "ReplicaDeletionIneligible"
STARTED, SUCCESSFUL = "ReplicaDeletionStarted", "ReplicaDeletionSuccessful"


def active_with(*rows, **given):
    return Active(context(*rows or (partition(), partition((2, 1), number=1)), **given))


def delete(active, topic="flights"):
    decision = active.ask("delete_topic", topic=topic)
    assert errors(decision) == {topic: None}
    return decision


def deleted_by(active, *brokers):
    active.has_applied(*brokers)
    return active.process(BrokerModifications())


def states(active, number=0):
    return [active.state(broker, number) for broker in (1, 2, 3)]


def is_gone(active, topic="flights"):
    left = [p for p in active.context.partitions if p.topic_id == f"{topic}-id"]
    return not left and topic not in active.context.topics and f"{topic}-id" not in active.context.deletions


def test_td_02_td_03_a_topic_with_all_brokers_alive_is_deleted():
    active = active_with()
    decision = delete(active)
    assert changed(decision) == {"flights-0": (-2, (1, 2, 3)), "flights-1": (-2, (2, 1))}, "nobody serves it"
    assert decision.topics["flights"].deleting
    assert (states(active), states(active, 1)) == ([STARTED] * 3, [STARTED, STARTED, "NonExistentReplica"])
    assert not deleted_by(active, 1).touches_metadata
    assert states(active) == [SUCCESSFUL, STARTED, STARTED]
    decision = deleted_by(active, 2, 3)
    assert (decision.removed, decision.dropped) == ({tp(), tp(1)}, {"flights"})
    assert is_gone(active)
    assert (active.context.replica_states, active.context.partition_states) == ({}, {})


def test_td_03_a_metadata_version_before_the_deletion_does_not_complete_it():
    active = active_with()
    active.has_applied(1, 2, 3)
    delete(active)
    active.process(BrokerModifications())
    assert states(active) == [STARTED] * 3
    active.has_applied(2, 3, version=active.context.deletions["flights-id"] - 1)
    deleted_by(active, 1)
    assert states(active) == [SUCCESSFUL, STARTED, STARTED]


def test_td_01_li_03_a_second_request_of_a_deletion_changes_nothing():
    active = active_with()
    delete(active)
    before = active.context
    decision = delete(active)
    assert not decision.touches_metadata
    assert (active.context.replica_states, active.context.deletions) == (before.replica_states, before.deletions)


@pytest.mark.parametrize(
    ("topic", "config", "error"),
    [
        ("ghosts", {}, "UnknownTopicOrPartitionException"),
        ("flights", {"delete_topic_enable": False}, "TopicDeletionDisabledException"),
    ],
)
def test_td_01_an_invalid_deletion_is_refused_and_changes_nothing(topic, config, error):
    active = active_with(**config)
    decision = active.ask("delete_topic", topic=topic)
    assert (errors(decision), decision.touches_metadata, decision.topics) == ({topic: error}, False, {})


@pytest.mark.parametrize("died", ["before", "after it began", "after it had deleted"])
def test_td_02_td_04_bd_02_a_deletion_waits_for_a_dead_replica(died):
    active = active_with()
    if died == "before":
        active.brokers(gone=(3,))
    delete(active)
    if died == "after it had deleted":
        deleted_by(active, 3)
    if died != "before":
        active.brokers(gone=(3,))
    deleted_by(active, 1, 2)
    if died == "after it had deleted":
        assert is_gone(active), "there is nothing to wait for"
        return
    assert states(active) == [SUCCESSFUL, SUCCESSFUL, INELIGIBLE]
    assert active.row().leader == -2, "the partition stays until all of its replicas are gone"
    active.brokers(come=(3,))
    assert states(active)[2] == STARTED, "it is resumed when the broker is back"
    assert not is_gone(active)
    deleted_by(active, 3)
    assert is_gone(active)


def test_td_04_bu_02_a_replica_deleted_before_its_broker_failed_stays_deleted():
    active = active_with()
    delete(active)
    deleted_by(active, 3)
    active.brokers(gone=(3,))
    active.brokers(come=(3,))
    assert states(active) == [STARTED, STARTED, SUCCESSFUL]
    deleted_by(active, 1, 2)
    assert is_gone(active)


def test_td_04_a_broker_with_a_new_epoch_deletes_its_replica_again():
    active = active_with()
    delete(active)
    active.brokers(bounced=(2,))
    assert states(active) == [STARTED] * 3
    deleted_by(active, 1, 3)
    assert states(active) == [SUCCESSFUL, STARTED, SUCCESSFUL], "what its last process told says nothing of this one"
    deleted_by(active, 2)
    assert is_gone(active)


@pytest.mark.parametrize("ends", ["completed", "cancelled"])
def test_td_01_td_04_ra_01_a_deletion_waits_for_the_end_of_a_reassignment(ends):
    active = active_with(partition((3, 2, 1), 1, (1, 2), adding=(3,), removing=(1,)), partition((2, 1), number=1))
    decision = delete(active)
    assert (changed(decision), decision.topics["flights"].deleting) == ({}, True)
    assert active.row(1).leader == 2, "no partition of it goes before the others"
    if ends == "completed":
        active.isr(1, 2, 3)
        active.brokers()
    else:
        active.ask("alter_partition_reassignments", reassignments={"flights-0": None})
    assert (active.row().leader, active.row(1).leader) == (-2, -2)
    assert set(active.row().replicas) == ({3, 2} if ends == "completed" else {2, 1})
    deleted_by(active, 1, 2, 3)
    assert is_gone(active)


@pytest.mark.parametrize("was_away", ["for a moment", "for long", "while nobody was the controller"])
def test_td_01_td_05_a_reassignment_before_a_deletion_continues_once_its_leader_is_back(was_away):
    """The leader's new process must be elected first. Without a leader the move would never end."""
    row = partition((3, 1), 1, (1,), adding=(3,), removing=(1,))
    unseen = was_away == "while nobody was the controller"
    active = active_with(replace(row, isr_epochs={1: 0}) if unseen else row)
    delete(active)
    match was_away:
        case "for a moment":
            active.brokers(bounced=(1,))
        case "for long":
            active.brokers(gone=(1,))
            assert active.row().leader == -1
            active.brokers(come=(1,))
        case _:
            active.fail_over({**active.context.brokers, 1: BrokerView(0)})
    row = active.row()
    assert (row.leader, row.isr, row.isr_epoch(1)) == (1, (1,), active.context.brokers[1].broker_epoch)
    active.isr(1, 3)
    active.brokers()
    assert active.row().leader == -2
    deleted_by(active, 1, 3)
    assert is_gone(active)


def test_td_04_a_deletion_whose_first_commit_had_no_answer_continues():
    """It began when a move ended. The second attempt of the commit sees the move as over, so nothing resumes it."""
    active = active_with(partition((3, 1), 1, (1,), adding=(3,), removing=(1,)))
    delete(active)
    active.isr(1, 3)
    landed = decide(active.context, IsrChangeNotification())
    assert changed(landed)["flights-0"][0] == -2
    active.context = active.context.with_partitions({**active.context.partitions, **landed.changed})
    again = active.process(IsrChangeNotification())
    assert (again.touches_metadata, again.deletions_begun) == (False, {"flights-id"})
    deleted_by(active, 1, 3)
    assert is_gone(active)


def test_td_01_ra_01_a_reassignment_without_a_possible_leader_is_given_up_for_a_deletion():
    active = active_with(partition((3, 1), 1, (1,), adding=(3,), removing=(1,)))
    delete(active)
    active.brokers(bounced=(1,), lost=(1,))
    assert active.row().leader == -1
    active.ask("alter_partition_reassignments", reassignments={"flights-0": None})
    assert (active.row().leader, active.row().replicas) == (-2, (1,))
    deleted_by(active, 1, 3)
    assert is_gone(active)


def test_td_05_other_requests_to_a_topic_that_is_being_deleted_are_refused():
    active = active_with(live=(1, 2, 3))
    delete(active)
    asked = {
        "create_partitions": {"topic": "flights", "total": 5},
        "alter_configs": {"topic": "flights", "put": {"min.insync.replicas": 2}, "delete": []},
        "alter_partition_reassignments": {"reassignments": {"flights-0": [3, 1]}},
        "elect_leaders": {"election_type": "unclean", "partitions": ["flights-0"]},
        "create_topic": {"topic": "flights", "partitions": 1},
    }
    found = {kind: active.ask(kind, **arguments) for kind, arguments in asked.items()}
    assert not any(decision.touches_metadata or decision.topics for decision in found.values())
    assert {kind: set(errors(decision).values()) for kind, decision in found.items()} == {
        **{kind: {"UnknownTopicOrPartitionException"} for kind in asked},
        "create_topic": {"TopicExistsException"},
    }


def test_td_03_a_recreated_topic_has_another_id():
    active = active_with()
    delete(active)
    deleted_by(active, 1, 2, 3)
    active.ask("create_topic", "request-2", topic="flights", assignment={"0": [1, 2]})
    assert active.context.topics["flights"].topic_id == "request-2"
    assert [p.topic_id for p in active.context.partitions] == ["request-2"]
    assert not active.context.topics["flights"].deleting


def test_td_03_a_topic_without_partitions_is_deleted_at_once():
    """Its creation ended between the commits on the two tables."""
    active = active_with()
    orphan = replace(active.context.topics["flights"], topic="orphan", topic_id="orphan-id")
    active.context = replace(active.context, topics={**active.context.topics, "orphan": orphan})
    assert delete(active, "orphan").dropped == {"orphan"}
    assert set(active.context.topics) == {"flights"}


def rows(active, **given):
    """The rows that another controller reads: those that this one knew, but for `given`."""
    old = active.context
    known = {"brokers": old.brokers, "topics": old.topics, "partitions": old.partitions, **given}
    active.context = ControllerContext(old.controller_epoch + 1, old.config, **known).started(active.version)
    return active.process(ControllerChange(old.brokers))


HALF_DONE = ["marked", "begun", "some have deleted", "all have deleted", "partitions are gone"]


@pytest.mark.parametrize("point", HALF_DONE)
def test_td_04_fo_04_the_next_controller_continues_a_deletion_from_any_step(point):
    active = active_with()
    before = active.context
    delete(active)
    match point:
        case "marked":  # the topic was written, its partitions were not
            active.has_applied(1, 2, 3)
            rows(active, partitions=before.partitions)
        case "begun":
            rows(active)
        case "some have deleted":
            deleted_by(active, 2)
            rows(active)
        case "all have deleted":  # they reported it before the controller looked, and will not report it again
            active.has_applied(1, 2, 3)
            assert rows(active).dropped == {"flights"}
            assert is_gone(active)
            return
        case "partitions are gone":  # the topic was not dropped
            decision = rows(active, partitions={})
            assert decision.dropped == {"flights"}
            assert is_gone(active)
            return
    assert states(active) == [STARTED] * 3, "brokers are asked anew"
    assert {active.row(n).leader for n in (0, 1)} == {-2}
    active.version += 1
    deleted_by(active, 1, 2, 3)
    assert is_gone(active)


def test_td_04_fo_04_the_next_controller_waits_for_a_dead_replica_too():
    active = active_with()
    delete(active)
    active.brokers(gone=(3,))
    active.fail_over()
    assert states(active) == [STARTED, STARTED, INELIGIBLE]
    deleted_by(active, 1, 2)
    assert not is_gone(active)
    active.brokers(come=(3,))
    deleted_by(active, 3)
    assert is_gone(active)
