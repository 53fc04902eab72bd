"""Deletes topics: every replica first, then the partitions, then the topic.

The tables hold the progress: the topic is marked, its partitions have the leader `LEADER_DURING_DELETE`, and a broker's
`metadata_version` shows that it has deleted its replicas. [TD-01, TD-02, TD-03, TD-04, TD-05]

Kafka: `TopicDeletionManager`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lakelog.replication.controller import partition_state_machine, replica_state_machine
from lakelog.replication.controller.controller_context import PartitionAndReplica
from lakelog.replication.controller.decision import Decision
from lakelog.replication.errors import TopicDeletionDisabledException
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, PartitionRegistration
from lakelog.replication.protocol.partition_states import PartitionState
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.replica_states import ReplicaState
from lakelog.replication.protocol.topic import Topic


def enqueue_topic_for_deletion(decision: Decision, topic: Topic) -> None:
    """Marks the topic and begins its deletion. A second call changes nothing. [TD-01]

    Raises TopicDeletionDisabledException if `delete.topic.enable` is false.
    """
    if not decision.context.config.delete_topic_enable:
        raise TopicDeletionDisabledException(f"topic {topic.topic}: delete.topic.enable is false")
    decision.mark_for_deletion(topic)
    resume_deletions(decision)


def resume_deletions(decision: Decision) -> None:
    """Begins or continues each deletion that can go on: by request, at failover, when a broker returns. [TD-02, TD-04]

    Kafka: `TopicDeletionManager.resumeDeletions`.
    """
    for topic in decision.topics_to_be_deleted():
        partitions = decision.partitions_of(topic)
        if any(is_reassigning(registration) for registration in partitions):
            continue  # the end of the reassignment resumes the deletion [TD-01]
        _begin(decision, partitions)
        _finish(decision, topic, partitions)


def resume_unnoticed_deletions(decision: Decision) -> None:
    """Continues deletions that began in a commit whose reply was lost. Otherwise no event might continue them: for
    example, the reassignment whose end began the deletion is over at the second attempt. [TD-04]"""
    for topic in decision.topics_to_be_deleted():
        partitions = decision.partitions_of(topic)
        is_known = topic.topic_id in decision.context.deletions or topic.topic_id in decision.deletions_begun
        if partitions and not is_known and all(r.leader == LEADER_DURING_DELETE for r in partitions):
            _begin(decision, partitions)
            _finish(decision, topic, partitions)


def _begin(decision: Decision, partitions: Iterable[PartitionRegistration]) -> None:
    """Takes the leaders away and makes live brokers delete their replicas. The deletion waits for dead brokers, unless
    they are unregistered."""
    for registration in partitions:
        if registration.leader != LEADER_DURING_DELETE:
            decision.put(replace(registration, leader=LEADER_DURING_DELETE))
            decision.deletions_begun.add(registration.topic_id)
        elif registration.topic_id not in decision.context.deletions:  # it was written, and the reply lost
            decision.deletions_begun.add(registration.topic_id)
        if decision.partition_state(registration.topic_id_partition) != PartitionState.OFFLINE:
            offline = [registration.topic_id_partition]
            partition_state_machine.handle_state_changes(decision, offline, PartitionState.OFFLINE)
        for replica in _replicas(registration):
            _stop_replica(decision, replica)


def _stop_replica(decision: Decision, replica: PartitionAndReplica) -> None:
    state = decision.replica_state(replica)
    if state in (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL):
        return
    is_alive = replica.broker_id in decision.context.brokers
    is_gone = replica.broker_id in decision.context.unregistered | decision.unregistered
    if state == ReplicaState.DELETION_INELIGIBLE and not is_alive and not is_gone:
        return
    begun = ReplicaState.DELETION_STARTED if is_alive or is_gone else ReplicaState.DELETION_INELIGIBLE
    done = [ReplicaState.DELETION_SUCCESSFUL] if is_gone and not is_alive else []
    for step in (ReplicaState.OFFLINE, begun, *done):
        replica_state_machine.handle_state_changes(decision, [replica], step)


def fail_replica_deletion(decision: Decision, replicas: Iterable[PartitionAndReplica]) -> None:
    """Makes the deletion wait for replicas whose brokers have failed. Deleted replicas stay deleted.

    Kafka: `TopicDeletionManager.failReplicaDeletion`. [BD-02]
    """
    for replica in replicas:
        state = decision.replica_state(replica)
        if state == ReplicaState.DELETION_SUCCESSFUL:
            continue
        if state != ReplicaState.DELETION_STARTED:
            replica_state_machine.handle_state_changes(decision, [replica], ReplicaState.OFFLINE)
        replica_state_machine.handle_state_changes(decision, [replica], ReplicaState.DELETION_INELIGIBLE)


def complete_replica_deletions(decision: Decision) -> None:
    """Marks the replicas that brokers report as deleted, and removes topics without remaining replicas.

    Kafka: `TopicDeletionManager.completeReplicaDeletion`. [TD-03]
    """
    for topic in decision.topics_to_be_deleted():
        partitions = decision.partitions_of(topic)
        is_begun_here = topic.topic_id in decision.deletions_begun
        since = None if is_begun_here else decision.context.deletions.get(topic.topic_id)
        for replica in (replica for registration in partitions for replica in _replicas(registration)):
            broker = decision.context.brokers.get(replica.broker_id)
            started = decision.replica_state(replica) == ReplicaState.DELETION_STARTED
            if started and broker is not None and since is not None and broker.metadata_version >= since:
                replica_state_machine.handle_state_changes(decision, [replica], ReplicaState.DELETION_SUCCESSFUL)
        _finish(decision, topic, partitions)


def _finish(decision: Decision, topic: Topic, partitions: list[PartitionRegistration]) -> None:
    """Once all replicas are deleted, removes the partitions and then the topic. [TD-03]"""
    replicas = [replica for registration in partitions for replica in _replicas(registration)]
    if any(decision.replica_state(replica) != ReplicaState.DELETION_SUCCESSFUL for replica in replicas):
        return
    replica_state_machine.handle_state_changes(decision, replicas, ReplicaState.NON_EXISTENT)
    deleted = [registration.topic_id_partition for registration in partitions]
    partition_state_machine.handle_state_changes(decision, deleted, PartitionState.NON_EXISTENT)
    for partition in deleted:
        decision.remove(partition)
    decision.dropped.add(topic.topic)


def _replicas(registration: PartitionRegistration) -> list[PartitionAndReplica]:
    return [PartitionAndReplica(registration.topic_id_partition, broker) for broker in registration.replicas]
