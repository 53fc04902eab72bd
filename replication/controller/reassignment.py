"""Reassignments: begun by request, carried on when ISRs and brokers change, ended or cancelled.

Kafka: `KafkaController.onPartitionReassignment`, `alterPartitionReassignments`. KIP-455. [RA-01, RA-02, RA-03]
"""

from __future__ import annotations

from collections.abc import Sequence

from lakelog.replication.controller import replica_state_machine, topic_deletion_manager
from lakelog.replication.controller.batch import Batch
from lakelog.replication.controller.controller_context import PartitionAndReplica
from lakelog.replication.errors import (
    EligibleLeadersNotAvailableException,
    InvalidReplicaAssignmentException,
    NoReassignmentInProgressException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.assignment import check_alive, check_replicas
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


def reassign(batch: Batch, partition: TopicIdPartition, target: Sequence[int]) -> str:
    """Begins to move a partition, and ends it in the same commit if nobody has to catch up. Answers what was done.

    A reassignment that is under way is replaced: from the replicas before it to the new target. Raises
    UnknownTopicOrPartitionException for a topic that is being deleted, InvalidReplicaAssignmentException for brokers
    that are unknown, given twice, or added while they are not alive, and EligibleLeadersNotAvailableException if who
    leads would go and nobody else may lead.

    Kafka: `KafkaController.alterPartitionReassignments`. KIP-455. [RA-01]
    """
    registration = batch.registration(partition)
    name = f"{registration.topic}-{registration.partition}"
    if batch.is_being_deleted(registration):
        raise UnknownTopicOrPartitionException(f"{name}: the topic is being deleted")
    if not target:
        raise InvalidReplicaAssignmentException(f"{name}: no brokers given, it needs 1 or more")
    moving = begin_reassignment(registration, target)
    check_replicas(partition.partition, target, batch.context.known_brokers | set(registration.replicas))
    check_alive(partition.partition, moving.adding_replicas, batch.context.brokers.keys())
    before = original_replicas(registration)
    if is_reassigning(registration):
        if tuple(target) == target_replicas(registration):
            return f"is being moved to brokers {list(target)} already"
        _replace(batch, registration, target)
    elif tuple(target) == before:
        return f"is on brokers {list(target)} already"
    else:
        batch.put(moving)
    adding = [PartitionAndReplica(partition, broker) for broker in moving.adding_replicas]
    added = [replica for replica in adding if batch.replica_state(replica) == ReplicaState.NON_EXISTENT]
    replica_state_machine.handle_state_changes(batch, added, ReplicaState.NEW)
    complete(batch, partition)
    return f"{list(before)} -> {list(target)}"


def _replace(batch: Batch, registration: PartitionRegistration, target: Sequence[int]) -> None:
    partition = registration.topic_id_partition
    replaced = replace_reassignment(registration, target, batch.live_for(partition))
    if replaced is None:
        raise EligibleLeadersNotAvailableException(
            f"{registration.topic}-{registration.partition}: the new reassignment drops a broker that only the one "
            "under way has added, and no broker that stays is alive and in the ISR"
        )
    _remove_replicas(batch, registration, replaced)
    batch.put(replaced)


def cancel(batch: Batch, partition: TopicIdPartition) -> str:
    """Goes back to the assignment before. Answers what was done.

    Raises NoReassignmentInProgressException, EligibleLeadersNotAvailableException if nobody there may lead. A topic
    that is queued for deletion needs no leader: its deletion begins.
    """
    registration = batch.registration(partition)
    name = f"{registration.topic}-{registration.partition}"
    if not is_reassigning(registration):
        raise NoReassignmentInProgressException(f"{name}: no reassignment is under way")
    back = cancel_reassignment(registration, batch.live_for(partition))
    if back is None and batch.is_being_deleted(registration):
        back = give_up_reassignment(registration)
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
    replica_state_machine.handle_state_changes(batch, staying, ReplicaState.ONLINE)
    _remove_replicas(batch, before, after)
    batch.put(after)
    topic_deletion_manager.resume_deletions(batch)  # which has waited for this [TD-04]


def _remove_replicas(batch: Batch, before: PartitionRegistration, after: PartitionRegistration) -> None:
    partition = before.topic_id_partition
    going = [PartitionAndReplica(partition, b) for b in before.replicas if b not in after.replicas]
    for state in (ReplicaState.OFFLINE, *replica_state_machine.DELETION):
        replica_state_machine.handle_state_changes(batch, going, state)
