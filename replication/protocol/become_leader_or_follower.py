"""What a broker does when the metadata has moved: which roles it takes up, and in which order.

Kafka: `ReplicaManager.becomeLeaderOrFollower`, `makeLeaders`, `makeFollowers`, `stopReplicas`.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.protocol.fencing import is_newer
from replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, PartitionLog, Role
from replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.steps import (
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

Registrations = Mapping[TopicIdPartition, PartitionRegistration]
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
    assigned = {p: r for p, r in metadata.items() if broker_id in r.replicas and r.leader != LEADER_DURING_DELETE}
    changed = {p: r for p, r in assigned.items() if is_newer(hosted.get(p), r)}
    gone = tuple(p for p in hosted if p not in assigned)
    leftover = tuple(p for p, log in logs.items() if p not in assigned and _is_left_over(log))
    steps: list[Step] = []
    if changed or gone or leftover:
        roles = {
            **{p: _stopped(p, metadata, hosted, logs) for p in (*gone, *leftover)},
            **{p: role_in(broker_id, r) for p, r in changed.items()},
        }
        resumed = frozenset(p for p in changed if p not in hosted and _leads_already(logs.get(p), roles[p]))
        steps += [StopFetching((*changed, *gone)), CommitRoles(roles)]
        steps += [HostPartitions(changed, gone, resumed), PublishReplicas("roles")]
        steps += [DeleteLogs(leftover)] if leftover else []  # no row speaks of them any more
    current = {p: r for p, r in assigned.items() if p not in hosted or r.leader_epoch >= hosted[p].leader_epoch}
    return [*steps, StartFetching(_followed(broker_id, current, logs)), StopIdleFetchers()]


def role_in(broker_id: int, registration: PartitionRegistration) -> Role:
    """What a registration makes of one of its replicas. Without a leader everybody follows, and waits."""
    return Role(registration.leader_epoch, LEADER if registration.leader == broker_id else FOLLOWER)


def _stopped(partition: TopicIdPartition, metadata: Registrations, hosted: Registrations, logs: Logs) -> Role:
    """The end of a role: at the epoch that took it away, or, of a topic that is gone, at the last one known. [SR-01]"""
    last = metadata.get(partition) or hosted.get(partition)
    recorded = logs[partition].role.leader_epoch if partition in logs else -1
    return Role(max(last.leader_epoch if last else -1, recorded), STOPPED)


def _is_left_over(log: PartitionLog) -> bool:
    """Whether a log has records, or is open for some, as a replica that has been taken away leaves it."""
    return bool(log.batches) or log.role.kind != STOPPED


def _leads_already(log: PartitionLog | None, role: Role) -> bool:
    """Whether an older process of this broker has begun the leadership: it may still be at work on the ISR."""
    return log is not None and role.is_leader and log.role == role


def _followed(broker_id: int, assigned: Registrations, logs: Logs) -> dict[TopicIdPartition, InitialFetchState]:
    """What fetchers need to know of the partitions that others lead. [BL-10]"""
    ends = {p: logs[p].log_end_offset if p in logs else 0 for p in assigned}
    return {
        p: InitialFetchState(r.topic, r.leader, r.leader_epoch, ends[p])
        for p, r in assigned.items()
        if r.leader not in (broker_id, NO_LEADER)
    }
