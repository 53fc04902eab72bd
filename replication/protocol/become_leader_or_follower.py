"""What a broker does when the metadata has moved: which roles it takes up, and in which order.

Kafka: `ReplicaManager.becomeLeaderOrFollower`, `makeLeaders`, `makeFollowers`, `stopReplicas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakelog.replication.protocol.fencing import is_newer
from lakelog.replication.protocol.partition_log import FENCED, FOLLOWER, LEADER, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    PartitionRegistration,
    Registrations,
)
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.steps import (
    CommitRoles,
    DeleteLogs,
    HostPartitions,
    InitialFetchState,
    PublishReplicas,
    StartFetching,
    Step,
    StopFetching,
    StopIdleFetchers,
)

Logs = Mapping[TopicIdPartition, PartitionLog]


def become_leader_or_follower(broker_id: int, hosted: Registrations, metadata: Registrations, logs: Logs) -> list[Step]:
    """The steps from what a broker hosts to what the metadata gives it; none of them for partitions that stay as they
    are.

    Fetching stops first; then the roles are recorded in the log, which fences whoever decided under the old ones; only
    then does the broker say what it now is, leaders before followers begin to fetch. So nothing is appended between the
    end of the old role and the record of the new one, and a follower that reads "leader at E" finds the epoch's start.

    `logs`: the partitions that the broker's log has anything of; what is not assigned to it goes. [SR-02, SR-03]

    Kafka: `ReplicaManager.becomeLeaderOrFollower`. KIP-101. [BL-03, BL-04, BL-05, BL-06, BL-08, FM-09]
    """
    assigned = assigned_to(broker_id, metadata)
    changed = {p: r for p, r in assigned.items() if is_newer(hosted.get(p), r)}
    gone = tuple(p for p in hosted if p not in assigned)
    leftover = tuple(p for p, log in logs.items() if p not in assigned and _is_left_over(log))
    steps: list[Step] = []
    if changed or gone or leftover:
        roles = {
            **{p: _stopped(p, metadata, hosted, logs) for p in (*gone, *leftover)},
            **{p: role_in(broker_id, r, logs.get(p)) for p, r in changed.items()},
        }
        steps += [StopFetching((*changed, *gone)), CommitRoles(roles)]
        steps += [HostPartitions(changed, gone), PublishReplicas("roles")]
        steps += [DeleteLogs(leftover)] if leftover else []  # no row speaks of them any more
    current = {p: r for p, r in assigned.items() if p not in hosted or r.leader_epoch >= hosted[p].leader_epoch}
    return [*steps, StartFetching(_followed(broker_id, current, logs)), StopIdleFetchers()]


def assigned_to(broker_id: int, metadata: Registrations) -> dict[TopicIdPartition, PartitionRegistration]:
    """What a broker is a replica of. One whose topic is being deleted is none: it is to be stopped. [SR-03]"""
    return {p: r for p, r in metadata.items() if broker_id in r.replicas and r.leader != LEADER_DURING_DELETE}


def given_to(
    broker_id: int, broker_epoch: int, metadata: Registrations
) -> dict[TopicIdPartition, PartitionRegistration]:
    """The metadata as one process of a broker may act on it: what an older process was elected for nobody leads.

    A new process leads only under a leader epoch that the controller has given it after its registration: until the
    controller has seen that, the log may have lost what others count on, or lie behind what they have. So one process
    at most leads under a leader epoch. Kafka: KIP-380; KRaft fences a broker until its registration is applied. [BC-01]
    """
    return {
        p: replace(r, leader=NO_LEADER) if _is_older(broker_id, broker_epoch, r) else r for p, r in metadata.items()
    }


def _is_older(broker_id: int, broker_epoch: int, registration: PartitionRegistration) -> bool:
    return registration.leader == broker_id and registration.isr_epoch(broker_id) != broker_epoch


def role_in(broker_id: int, registration: PartitionRegistration, log: PartitionLog | None = None) -> Role:
    """What a registration makes of one of its replicas. Without a leader everybody follows, and waits.

    A log that an older process of the broker has opened under this epoch takes no more records. [BC-01]
    """
    epoch = registration.leader_epoch
    if registration.leader == broker_id:
        return Role(epoch, LEADER)
    return Role(epoch, FENCED if log is not None and log.role.leads_at(epoch) else FOLLOWER)


def _stopped(partition: TopicIdPartition, metadata: Registrations, hosted: Registrations, logs: Logs) -> Role:
    """The end of a role: at the epoch that took it away, or, of a topic that is gone, at the last one known. [SR-01]"""
    last = metadata.get(partition) or hosted.get(partition)
    recorded = logs[partition].role.leader_epoch if partition in logs else -1
    return Role(max(last.leader_epoch if last else -1, recorded), STOPPED)


def _is_left_over(log: PartitionLog) -> bool:
    """Whether a log has records, or is open for some, as a replica that has been taken away leaves it."""
    return bool(log.batches) or log.role.kind != STOPPED


def _followed(broker_id: int, assigned: Registrations, logs: Logs) -> dict[TopicIdPartition, InitialFetchState]:
    """What fetchers need to know of the partitions that others lead. [BL-10]"""
    ends = {p: logs[p].log_end_offset if p in logs else 0 for p in assigned}
    return {
        p: InitialFetchState(r.topic, r.leader, r.leader_epoch, ends[p])
        for p, r in assigned.items()
        if r.leader not in (broker_id, NO_LEADER)
    }
