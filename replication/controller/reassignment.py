"""Reassignments: begun by request, carried on when ISRs and brokers change, ended or cancelled.

Kafka: `KafkaController.onPartitionReassignment`, `alterPartitionReassignments`. KIP-455. [RA-01, RA-02, RA-03]
"""

from __future__ import annotations

from collections.abc import Sequence

from replication.controller import replica_state_machine, topic_deletion_manager
from replication.controller.batch import Batch
from replication.controller.controller_context import PartitionAndReplica
from replication.errors import (
    EligibleLeadersNotAvailableException,
    InvalidReplicaAssignmentException,
    NoReassignmentInProgressException,
    ReassignmentInProgressException,
    UnknownTopicOrPartitionException,
)
from replication.protocol.assignment import check_replicas
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.reassignment import (
    begin_reassignment,
    cancel_reassignment,
    complete_reassignment,
    is_reassigning,
    may_complete,
    target_replicas,
)
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica_states import ReplicaState


def reassign(batch: Batch, partition: TopicIdPartition, target: Sequence[int]) -> str:
    """Begins to move a partition, and ends it in the same commit if nobody has to catch up. Answers what was done.

    Raises UnknownTopicOrPartitionException for a topic that is being deleted, ReassignmentInProgressException,
    InvalidReplicaAssignmentException for brokers that are unknown, dead or given twice. [RA-01]
    """
    registration = batch.registration(partition)
    name = f"{registration.topic}-{registration.partition}"
    if batch.is_being_deleted(registration):
        raise UnknownTopicOrPartitionException(f"{name}: the topic is being deleted")
    if is_reassigning(registration):
        raise ReassignmentInProgressException(
            f"{name}: is being moved to brokers {list(target_replicas(registration))}; cancel that first"
        )
    if not target:
        raise InvalidReplicaAssignmentException(f"{name}: no brokers given, it needs 1 or more")
    check_replicas(partition.partition, target, batch.context.brokers.keys())
    if tuple(target) == registration.replicas:
        return f"is on brokers {list(target)} already"
    moving = begin_reassignment(registration, target)
    batch.put(moving)
    added = [PartitionAndReplica(partition, broker) for broker in moving.adding_replicas]
    replica_state_machine.handle_state_changes(batch, added, ReplicaState.NEW)
    complete(batch, partition)
    return f"{list(registration.replicas)} -> {list(target)}"


def cancel(batch: Batch, partition: TopicIdPartition) -> str:
    """Goes back to the assignment before. Answers what was done.

    Raises NoReassignmentInProgressException, EligibleLeadersNotAvailableException if nobody there may lead.
    """
    registration = batch.registration(partition)
    name = f"{registration.topic}-{registration.partition}"
    if not is_reassigning(registration):
        raise NoReassignmentInProgressException(f"{name}: no reassignment is under way")
    back = cancel_reassignment(registration, batch.live_for(partition))
    if back is None:
        raise EligibleLeadersNotAvailableException(f"{name}: none of its former brokers is alive and in the ISR")
    _settle(batch, registration, back)
    return f"stays on brokers {list(back.replicas)}"


def complete_where_possible(batch: Batch) -> None:
    """Ends every reassignment whose target has caught up. [RA-03, FO-04, BU-02]"""
    for partition in batch.context.partitions:
        if partition not in batch.removed and is_reassigning(batch.registration(partition)):
            complete(batch, partition)


def complete(batch: Batch, partition: TopicIdPartition) -> None:
    """Ends a reassignment if all of the target are in the ISR and one of them may lead. [RA-03]"""
    registration = batch.registration(partition)
    done = complete_reassignment(registration, batch.live_for(partition)) if may_complete(registration) else None
    if done is not None:
        _settle(batch, registration, done)


def _settle(batch: Batch, before: PartitionRegistration, after: PartitionRegistration) -> None:
    """What stays is online, what goes passes through its deletion: its broker sees in the metadata that it is to go."""
    partition = before.topic_id_partition
    brokers = batch.context.brokers
    staying = [
        PartitionAndReplica(partition, b)
        for b in after.replicas
        if b in brokers and partition not in brokers[b].offline
    ]
    going = [PartitionAndReplica(partition, b) for b in before.replicas if b not in after.replicas]
    replica_state_machine.handle_state_changes(batch, staying, ReplicaState.ONLINE)
    for state in (ReplicaState.OFFLINE, *replica_state_machine.DELETION):
        replica_state_machine.handle_state_changes(batch, going, state)
    batch.put(after)
    topic_deletion_manager.resume_deletions(batch)  # which has waited for this [TD-04]
