"""The round in which a broker takes up the roles that the metadata gives it: which roles, and in which order.

It also handles replicas with a broken file: they go offline, and are fetched again if other brokers have their records.

Kafka: `ReplicaManager.applyDelta`, `becomeLeaderOrFollower`, `makeLeaders`, `makeFollowers`, `stopReplicas`. [BL-03,
OL-01]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from lakelog.replication.protocol import leadership
from lakelog.replication.protocol.fencing import is_newer
from lakelog.replication.protocol.fetch_state import InitialFetchState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_log import FENCED, FOLLOWER, LEADER, NO_ROLE, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    PartitionRegistration,
    Registrations,
)
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.broker_steps import BrokerState, OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.carry_out import Result

Logs: TypeAlias = Mapping[TopicIdPartition, PartitionLog]


class ReadOwnLogs(NamedTuple):
    """Reads this broker's log up to its newest commit. Answer: `OwnLogs` of all partitions in it, and of all that
    `metadata` assigns to the broker."""

    metadata: Mapping[TopicIdPartition, PartitionRegistration]


class FenceIsrChanges(NamedTuple):
    """One commit on `metadata`: raises the partition epoch where another broker leads and this one is not in the ISR.
    ISR changes that leaders have decided earlier then fail. Answer: the partitions where this is so."""

    partitions: tuple[TopicIdPartition, ...]


class RepairLogs(NamedTuple):
    """One commit on the log: removes the broken files of these partitions, and truncates each partition at its first
    broken batch, if it still follows at its leader epoch."""

    leader_epochs: Mapping[TopicIdPartition, int]


class StopFetching(NamedTuple):
    """Removes partitions from their fetchers, and waits until running rounds no longer write to them.

    Otherwise the last steps of a round could change a partition that has its next role: set its HW, for example.
    """

    partitions: tuple[TopicIdPartition, ...]


class CommitRoles(NamedTuple):
    """One commit on the log: records roles. It fences appends and truncations under older epochs, and fixes the start
    offset of a new leader's epoch."""

    roles: Mapping[TopicIdPartition, Role]


class DeleteLogs(NamedTuple):
    """One commit on the log: deletes all records of these stopped partitions, and broken files without records of
    assigned partitions."""

    partitions: tuple[TopicIdPartition, ...]


class HostPartitions(NamedTuple):
    """In memory: hosts partitions under these registrations, and forgets those in `removed`."""

    registrations: Mapping[TopicIdPartition, PartitionRegistration]
    removed: tuple[TopicIdPartition, ...]


class StartFetching(NamedTuple):
    """Assigns partitions to fetchers; those already fetched under the same leader and epoch stay as they are."""

    partitions: Mapping[TopicIdPartition, InitialFetchState]


class StopIdleFetchers(NamedTuple):
    """Stops the fetchers that have no partition."""


RoleStep: TypeAlias = (
    StopFetching | CommitRoles | DeleteLogs | HostPartitions | StartFetching | StopIdleFetchers | PublishReplicas
    | ReadOwnLogs | FenceIsrChanges | RepairLogs
)  # fmt: skip

Round: TypeAlias = carry_out.Round[RoleStep, Result]


def become_leader_or_follower(
    broker_id: int, hosted: Registrations, metadata: Registrations, logs: Logs
) -> list[RoleStep]:
    """The steps by which a broker goes from the partitions that it hosts to those that the metadata assigns to it.

    Order: first the broker stops fetching. Then it commits the new roles to its log, which fences every decision made
    under the old ones. Only then does it publish its rows, and followers begin to fetch. So nothing is appended between
    the end of the old role and the commit of the new one, and a follower that reads "leader at E" finds the start of
    epoch E in the same row.

    `logs`: every partition in the broker's log. The steps delete those that the metadata have taken from this broker.
    Those that the metadata do not explain become stray replicas, which keep their records: the metadata may be those of
    another cluster, or older ones. [SR-02, SR-03]

    Kafka: `ReplicaManager.becomeLeaderOrFollower`, `LogManager.addStrayLog`. KIP-101. [BL-03, BL-04, BL-05, BL-06,
    BL-08, FM-09]
    """
    assigned = {
        p: r
        for p, r in assigned_to(broker_id, metadata).items()
        if p in hosted or p not in logs or _is_obeyed(broker_id, r, logs[p].role)
    }
    changed = {p: r for p, r in assigned.items() if is_newer(hosted.get(p), r)}
    removed = tuple(p for p in hosted if p not in assigned)
    leftover = {p: log for p, log in logs.items() if p not in assigned and _is_left_over(log)}
    last_roles = {p: _last_role(metadata.get(p), hosted.get(p), logs.get(p)) for p in (*removed, *leftover)}
    ended = {p: role for p, role in last_roles.items() if p in hosted or _must_end(logs[p].role, role)}
    deleted = tuple(p for p in leftover if p in ended and ended[p].kind == STOPPED)
    steps: list[RoleStep] = []
    if changed or ended:
        roles = {**ended, **{p: role_in(broker_id, r, logs.get(p)) for p, r in changed.items()}}
        steps += [StopFetching((*changed, *removed)), CommitRoles(roles)]
        steps += [HostPartitions(changed, removed), PublishReplicas("roles")]
        steps += [DeleteLogs(deleted)] if deleted else []  # after the rows stopped claiming them
    current = {p: r for p, r in assigned.items() if p not in hosted or r.leader_epoch >= hosted[p].leader_epoch}
    return [*steps, StartFetching(_followed(broker_id, current, logs)), StopIdleFetchers()]


def assigned_to(broker_id: int, metadata: Registrations) -> dict[TopicIdPartition, PartitionRegistration]:
    """The partitions that have a replica on the broker, except those of topics that are being deleted. [SR-03]"""
    return {p: r for p, r in metadata.items() if broker_id in r.replicas and r.leader != LEADER_DURING_DELETE}


def given_to(
    broker_id: int, broker_epoch: int, metadata: Registrations
) -> dict[TopicIdPartition, PartitionRegistration]:
    """The metadata for one process of a broker: a partition whose leader is an older process of it has no leader.

    A new process leads only under a leader epoch that the controller gave it after its registration. Until then its log
    may lack records that other replicas count on. So at most one process leads under a leader epoch. Kafka: KIP-380;
    KRaft fences a broker until its registration is applied. [BC-01]
    """
    return {
        p: replace(r, leader=NO_LEADER) if _led_by_older(broker_id, broker_epoch, r) else r for p, r in metadata.items()
    }


def _led_by_older(broker_id: int, broker_epoch: int, registration: PartitionRegistration) -> bool:
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
    """Whether a replica was stopped and deleted although the metadata have it in the ISR. That happens if an operator
    deletes a stray replica by hand. It has to leave the ISR before it may lead or follow again. [SR-03]"""
    return role.kind == STOPPED and role != NO_ROLE and broker_id in registration.isr


def _is_obeyed(broker_id: int, registration: PartitionRegistration, role: Role) -> bool:
    """Whether a broker that starts obeys a registration of a replica for which its log has this role. It does not obey
    one that is older than its log, because that comes from an older copy of the cluster root. [SR-02]"""
    return registration.leader_epoch >= role.leader_epoch and not was_deleted(broker_id, registration, role)


def _last_role(
    registration: PartitionRegistration | None, hosted: PartitionRegistration | None, log: PartitionLog | None
) -> Role:
    """The role of a replica that is not assigned any more.

    A removal of a replica and a deletion of a topic raise the leader epoch. If the metadata have such a newer epoch,
    the replica is stopped at it. Otherwise they do not explain why the replica is here, and it is stray. [SR-01, SR-02]
    """
    recorded = log.role if log is not None else NO_ROLE
    if recorded.kind == STOPPED and hosted is not None:  # `log` was read before the broker's present role was committed
        recorded = Role(hosted.leader_epoch, FOLLOWER)
    if registration is not None and registration.leader_epoch > recorded.before_stray.leader_epoch:
        return Role(registration.leader_epoch, STOPPED)
    return recorded.as_stray()


def _must_end(recorded: Role, last: Role) -> bool:
    """Whether a log has yet to record the last role of a replica, or to delete its records. A replica that is recorded
    as stray keeps its records."""
    return last != NO_ROLE and not (last.is_stray and last == recorded)


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


@dataclass(frozen=True)
class RoleRules:
    """The rules that this round calls, as fields, so that the simulation can replace one."""

    given_to: Callable[[int, int, Registrations], Registrations] = given_to
    become_leader_or_follower: Callable[[int, Registrations, Registrations, Logs], list[RoleStep]] = (
        become_leader_or_follower
    )
    follow_registration: Callable[[HostedPartition, PartitionRegistration], HostedPartition] = (
        leadership.follow_registration
    )


ROLE_RULES = RoleRules()


def take_up_roles(
    broker_id: int, broker_epoch: int, state: BrokerState, metadata: Registrations, rules: RoleRules = ROLE_RULES
) -> Round[None]:
    """Moves a broker's process from its roles to those that the metadata gives it; unchanged replicas stay as they are.

    Broken files without records of assigned partitions are deleted first.
    """
    hosted, offline = state.hosted, state.offline
    given = rules.given_to(broker_id, broker_epoch, metadata)
    hosted.update({p: rules.follow_registration(h, given[p]) for p, h in hosted.items() if p in given})
    before = {p: h.registration for p, h in hosted.items()}
    own: OwnLogs = yield ReadOwnLogs(given)
    if own.has_broken_files:
        yield DeleteLogs(())
        own = yield ReadOwnLogs(given)
    has_changed = offline.observe(own.faults, given)
    usable = offline.without_led
    steps = rules.become_leader_or_follower(broker_id, usable(before), usable(given), usable(own.logs))
    if has_changed:
        steps = [StopFetching(tuple(offline.faults)), *steps, PublishReplicas("offline replicas")]
    for step in steps:
        _ = yield step  # not `yield from`: a list's iterator cannot receive answers
    yield from _repair(state)


def _repair(state: BrokerState) -> Round[None]:
    """Removes the broken batches of offline replicas that can be fetched again.

    A leader may have read the row of such a replica before its file broke, and be about to add it to the ISR. So the
    round first fences ISR changes, once each time a replica goes offline: those decided earlier then fail.
    """
    offline = state.offline
    repairable = offline.repairable(state.published())
    unfenced = tuple(sorted(repairable.keys() - offline.fenced))
    if unfenced:
        fenced: Collection[TopicIdPartition] = yield FenceIsrChanges(unfenced)
        offline.fenced |= set(fenced)
    to_repair = {p: epoch for p, epoch in repairable.items() if p in offline.fenced}
    if to_repair:
        yield RepairLogs(to_repair)
