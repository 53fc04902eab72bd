"""Begins reassignments by request, completes them when ISRs and brokers change, and cancels them.

Kafka: `KafkaController.onPartitionReassignment`, `alterPartitionReassignments`. KIP-455. [RA-01, RA-02, RA-03]
"""

from __future__ import annotations

from collections.abc import Sequence

from lakelog.replication.controller import replica_state_machine, topic_deletion_manager
from lakelog.replication.controller.controller_context import PartitionAndReplica
from lakelog.replication.controller.decision import Decision
from lakelog.replication.errors import (
    EligibleLeadersNotAvailableException,
    InvalidReplicaAssignmentException,
    NoReassignmentInProgressException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.assignment import check_alive, check_not_cordoned, check_replicas
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import (
    begin_reassignment,
    cancel_reassignment,
    complete_reassignment,
    give_up_reassignment,
    is_reassigning,
    may_complete,
    original_replicas,
    replace_reassignment,
    target_replicas,
)
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_states import ReplicaState


def reassign(decision: Decision, partition: TopicIdPartition, target: Sequence[int]) -> str:
    """Begins to move a partition, and completes the move in the same commit if no replica has to catch up. Returns the
    result as text.

    It replaces a reassignment under way by one from the original replicas to the new target. Raises
    UnknownTopicOrPartitionException if the topic is being deleted, InvalidReplicaAssignmentException if `target` is
    empty or names brokers that are unknown, repeated, or added while dead or cordoned, and
    EligibleLeadersNotAvailableException if the leader would have to leave and no other replica may lead. A replica that
    the reassignment under way adds may still come to a broker that was cordoned since.

    Kafka: `KafkaController.alterPartitionReassignments`. KIP-455, KIP-1066. [RA-01]
    """
    registration = decision.registration(partition)
    name = registration.name
    if decision.is_being_deleted(registration):
        raise UnknownTopicOrPartitionException(f"{name}: the topic is being deleted")
    if not target:
        raise InvalidReplicaAssignmentException(f"{name}: no brokers given, it needs 1 or more")
    moving = begin_reassignment(registration, target)
    check_replicas(partition.partition, target, decision.context.known_brokers | set(registration.replicas))
    check_alive(partition.partition, moving.adding_replicas, decision.context.brokers.keys())
    coming = [broker for broker in moving.adding_replicas if broker not in registration.replicas]
    check_not_cordoned(partition.partition, coming, decision.cordoned)
    before = original_replicas(registration)
    if is_reassigning(registration):
        if tuple(target) == target_replicas(registration):
            return f"is being moved to brokers {list(target)} already"
        _replace(decision, registration, target)
    elif tuple(target) == before:
        return f"is on brokers {list(target)} already"
    else:
        decision.put(moving)
    adding = [PartitionAndReplica(partition, broker) for broker in moving.adding_replicas]
    added = [replica for replica in adding if decision.replica_state(replica) == ReplicaState.NON_EXISTENT]
    replica_state_machine.handle_state_changes(decision, added, ReplicaState.NEW)
    complete(decision, partition)
    return f"{list(before)} -> {list(target)}"


def _replace(decision: Decision, registration: PartitionRegistration, target: Sequence[int]) -> None:
    partition = registration.topic_id_partition
    replaced = replace_reassignment(registration, target, decision.live_for(partition))
    if replaced is None:
        raise EligibleLeadersNotAvailableException(
            f"{registration.name}: the new reassignment drops a broker that only the one "
            "under way has added, and no broker that stays is alive and in the ISR"
        )
    _remove_replicas(decision, registration, replaced)
    decision.put(replaced)


def cancel(decision: Decision, partition: TopicIdPartition) -> str:
    """Cancels a reassignment: the partition gets its original replicas again. Returns the result as text.

    Raises NoReassignmentInProgressException, and EligibleLeadersNotAvailableException if none of them may lead. A topic
    that is queued for deletion needs no leader: its deletion begins.
    """
    registration = decision.registration(partition)
    name = registration.name
    if not is_reassigning(registration):
        raise NoReassignmentInProgressException(f"{name}: no reassignment is under way")
    back = cancel_reassignment(registration, decision.live_for(partition))
    if back is None and decision.is_being_deleted(registration):
        back = give_up_reassignment(registration)
    if back is None:
        raise EligibleLeadersNotAvailableException(f"{name}: none of its former brokers is alive and in the ISR")
    _settle(decision, registration, back)
    return f"stays on brokers {list(back.replicas)}"


def complete_where_possible(decision: Decision) -> None:
    """Completes each reassignment whose target replicas have caught up. [RA-03, FO-04, BU-02]"""
    for partition in decision.context.partitions:
        if partition not in decision.removed and is_reassigning(decision.registration(partition)):
            complete(decision, partition)


def complete(decision: Decision, partition: TopicIdPartition) -> None:
    """Completes a reassignment if all target replicas are in the ISR and one of them may lead. [RA-03]"""
    registration = decision.registration(partition)
    done = complete_reassignment(registration, decision.live_for(partition)) if may_complete(registration) else None
    if done is not None:
        _settle(decision, registration, done)


def _settle(decision: Decision, before: PartitionRegistration, after: PartitionRegistration) -> None:
    """Sets staying replicas online, and moves the others through deletion: their brokers see this in the metadata."""
    partition = before.topic_id_partition
    brokers = decision.context.brokers
    staying = [
        PartitionAndReplica(partition, b)
        for b in after.replicas
        if b in brokers and partition not in brokers[b].offline
    ]
    replica_state_machine.handle_state_changes(decision, staying, ReplicaState.ONLINE)
    _remove_replicas(decision, before, after)
    decision.put(after)
    topic_deletion_manager.resume_deletions(decision)  # a deletion waits for the end of reassignments [TD-04]


def _remove_replicas(decision: Decision, before: PartitionRegistration, after: PartitionRegistration) -> None:
    partition = before.topic_id_partition
    going = [PartitionAndReplica(partition, b) for b in before.replicas if b not in after.replicas]
    for state in (ReplicaState.OFFLINE, *replica_state_machine.DELETION):
        replica_state_machine.handle_state_changes(decision, going, state)
