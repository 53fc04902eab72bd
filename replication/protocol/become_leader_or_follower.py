"""Decides the steps of a broker when the metadata has changed: which roles it takes up, and in which order.

Kafka: `ReplicaManager.becomeLeaderOrFollower`, `makeLeaders`, `makeFollowers`, `stopReplicas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakelog.replication.protocol.fencing import is_newer
from lakelog.replication.protocol.partition_log import FENCED, FOLLOWER, LEADER, NO_ROLE, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    PartitionRegistration,
    Registrations,
)
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.broker_steps import (
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
    """The steps that take a broker from its hosted partitions to those that the metadata assigns to it, where they
    differ.

    Order: first the broker stops fetching. Then it commits the new roles to its log, which fences every decision made
    under the old ones. Only then it publishes its rows, and followers begin to fetch. So nothing is appended between
    the end of the old role and the commit of the new one, and a follower that reads "leader at E" finds epoch E's
    start.

    `logs`: every partition in the broker's log. The steps delete those of which the metadata say that they are not
    this broker's any more. Those that the metadata do not explain become stray replicas, which keep their records:
    the metadata may be those of another cluster, or older ones. [SR-02, SR-03]

    Kafka: `ReplicaManager.becomeLeaderOrFollower`, `LogManager.addStrayLog`. KIP-101. [BL-03, BL-04, BL-05, BL-06,
    BL-08, FM-09]
    """
    assigned = {
        p: r
        for p, r in assigned_to(broker_id, metadata).items()
        if p in hosted or p not in logs or _is_obeyed(broker_id, r, logs[p].role)
    }
    changed = {p: r for p, r in assigned.items() if is_newer(hosted.get(p), r)}
    gone = tuple(p for p in hosted if p not in assigned)
    leftover = {p: log for p, log in logs.items() if p not in assigned and _is_left_over(log)}
    ended = {p: _ended(metadata.get(p), hosted.get(p), logs.get(p)) for p in (*gone, *leftover)}
    ended = {p: role for p, role in ended.items() if p in hosted or _is_new(role, logs[p].role)}
    deleted = tuple(p for p in leftover if p in ended and ended[p].kind == STOPPED)
    steps: list[Step] = []
    if changed or ended:
        roles = {**ended, **{p: role_in(broker_id, r, logs.get(p)) for p, r in changed.items()}}
        steps += [StopFetching((*changed, *gone)), CommitRoles(roles)]
        steps += [HostPartitions(changed, gone), PublishReplicas("roles")]
        steps += [DeleteLogs(deleted)] if deleted else []  # after the rows stopped claiming them
    current = {p: r for p, r in assigned.items() if p not in hosted or r.leader_epoch >= hosted[p].leader_epoch}
    return [*steps, StartFetching(_followed(broker_id, current, logs)), StopIdleFetchers()]


def assigned_to(broker_id: int, metadata: Registrations) -> dict[TopicIdPartition, PartitionRegistration]:
    """The partitions that have a replica on the broker, except those of topics that are being deleted. [SR-03]"""
    return {p: r for p, r in metadata.items() if broker_id in r.replicas and r.leader != LEADER_DURING_DELETE}


def given_to(
    broker_id: int, broker_epoch: int, metadata: Registrations
) -> dict[TopicIdPartition, PartitionRegistration]:
    """The metadata for one process of a broker: partitions that elected an older process of it have no leader.

    A new process leads only under a leader epoch that the controller gave it after its registration. Until then its log
    may lack records that other replicas count on. So at most one process leads under a leader epoch. Kafka: KIP-380;
    KRaft fences a broker until its registration is applied. [BC-01]
    """
    return {
        p: replace(r, leader=NO_LEADER) if _is_older(broker_id, broker_epoch, r) else r for p, r in metadata.items()
    }


def _is_older(broker_id: int, broker_epoch: int, registration: PartitionRegistration) -> bool:
    return registration.leader == broker_id and registration.isr_epoch(broker_id) != broker_epoch


def role_in(broker_id: int, registration: PartitionRegistration, log: PartitionLog | None = None) -> Role:
    """The role that a registration gives the broker. A partition without a leader has only followers, which wait.

    If an older process of the broker led under this epoch, the log is fenced and takes no more records. [BC-01]
    """
    epoch = registration.leader_epoch
    if registration.leader == broker_id:
        return Role(epoch, LEADER)
    return Role(epoch, FENCED if log is not None and log.role.before_stray.leads_at(epoch) else FOLLOWER)


def was_deleted(broker_id: int, registration: PartitionRegistration, role: Role) -> bool:
    """Whether a replica was stopped and deleted that the metadata still count on, as a member of the ISR: somebody has
    deleted a stray replica by hand. It has to leave the ISR before it may lead or follow again. [SR-03]"""
    return role.kind == STOPPED and role != NO_ROLE and broker_id in registration.isr


def _is_obeyed(broker_id: int, registration: PartitionRegistration, role: Role) -> bool:
    """Whether a broker that begins takes up the role that a registration gives to a replica with this role in its log.
    An older registration is one of an older copy of the cluster root. [SR-02]"""
    return registration.leader_epoch >= role.leader_epoch and not was_deleted(broker_id, registration, role)


def _ended(
    registration: PartitionRegistration | None, hosted: PartitionRegistration | None, log: PartitionLog | None
) -> Role:
    """The role of a replica that is not assigned any more: *stopped*, at the leader epoch that ended the old role, if
    the metadata say so. Each removal of a replica, and each deletion of a topic, raises the leader epoch. Without such
    a registration the replica is a stray one. [SR-01, SR-02]"""
    recorded = log.role if log is not None else NO_ROLE
    if recorded.kind == STOPPED and hosted is not None:  # its role is committed, but this log is of an earlier read
        recorded = Role(hosted.leader_epoch, FOLLOWER)
    if registration is not None and registration.leader_epoch > recorded.before_stray.leader_epoch:
        return Role(registration.leader_epoch, STOPPED)
    return recorded.as_stray()


def _is_new(role: Role, recorded: Role) -> bool:
    """Whether there is something to do with the log of a replica that ends with a role: to commit it, or to delete."""
    return role != NO_ROLE and not (role.is_stray and role == recorded)


def _is_left_over(log: PartitionLog) -> bool:
    """Whether the log of an unassigned partition still has records, or a role other than stopped."""
    return bool(log.batches) or log.role.kind != STOPPED


def _followed(broker_id: int, assigned: Registrations, logs: Logs) -> dict[TopicIdPartition, InitialFetchState]:
    """The initial fetch states of the partitions that other brokers lead. [BL-10]"""
    ends = {p: logs[p].log_end_offset if p in logs else 0 for p in assigned}
    return {
        p: InitialFetchState(r.topic, r.leader, r.leader_epoch, ends[p])
        for p, r in assigned.items()
        if r.leader not in (broker_id, NO_LEADER)
    }
