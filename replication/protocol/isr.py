"""Who is in sync. The leader decides, and writes what it has decided by compare-and-set on the metadata.

Kafka: `Partition.maybeShrinkIsr`, `Partition.maybeExpandIsr`, `Replica.updateFetchState`. KIP-497.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition

NEVER_CAUGHT_UP = float("-inf")


@dataclass(frozen=True, slots=True)
class FollowerProgress:
    """How far a follower has come, as its leader has seen it; times are seconds of the leader's monotonic clock.

    `seen_at` and `leader_end_offset_then` are of the look that it still has to catch up with.
    """

    log_end_offset: int = -1
    caught_up_at: float = NEVER_CAUGHT_UP
    seen_at: float = NEVER_CAUGHT_UP
    leader_end_offset_then: int = 0


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An ISR that a leader wants: it holds for the very registration that it was decided on, and for no later one.

    `joiners`: the broker epoch of each broker that comes in. A change that was sent and not answered stays the same
    change: its outcome is found out before another one is decided.
    """

    topic_id_partition: TopicIdPartition
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    joiners: Mapping[int, int] = field(default_factory=dict)


class AlterIsrOutcome(enum.Enum):
    """What has become of a change of the ISR."""

    APPLIED = "applied"
    FOUND = "found: an earlier attempt had won"
    LOST = "lost: the registration it was decided on is gone"


# What has become of each change, and the registration that holds now.
IsrOutcomes: TypeAlias = Mapping[TopicIdPartition, tuple[AlterIsrOutcome, PartitionRegistration | None]]


def observe(
    progress: FollowerProgress, log_end_offset: int, leader_log_end_offset: int, now: float
) -> FollowerProgress:
    """What a leader knows of a follower after another look at its row.

    It is caught up now if it has all that the leader has; and it was at an earlier look if it now has all that the
    leader had then: so a follower that is always a little behind a busy leader still counts as in sync. That look stays
    the one to catch up with until it has: a leader looks many times while a fetch is under way, and would else move
    the goal each time. In Kafka a look is a fetch.

    Kafka: `Replica.updateFetchState`. [IS-03]
    """
    if log_end_offset >= leader_log_end_offset:
        return FollowerProgress(log_end_offset, now, now, leader_log_end_offset)
    if log_end_offset < progress.leader_end_offset_then:
        return replace(progress, log_end_offset=log_end_offset)
    caught_up_at = max(progress.caught_up_at, progress.seen_at)
    return FollowerProgress(log_end_offset, caught_up_at, now, leader_log_end_offset)


def is_out_of_sync(
    progress: FollowerProgress, leader_log_end_offset: int, now: float, replica_lag_time_max: float
) -> bool:
    """A follower is out of sync if it lacks something and was last caught up longer ago than the lag time.

    Strictly longer; with the LEO of the leader it stays in sync. Kafka: `Partition.isFollowerOutOfSync`. [IS-02]
    """
    return progress.log_end_offset != leader_log_end_offset and now - progress.caught_up_at > replica_lag_time_max


def maybe_shrink_isr(
    registration: PartitionRegistration,
    progress: Mapping[int, FollowerProgress],
    leader_log_end_offset: int,
    now: float,
    replica_lag_time_max: float,
) -> IsrChange | None:
    """The ISR without the followers that are out of sync; None if there are none.

    Kafka: `Partition.maybeShrinkIsr`. [IS-01, IS-02]
    """
    out = {
        broker
        for broker in registration.isr
        if broker != registration.leader
        and is_out_of_sync(progress.get(broker, FollowerProgress()), leader_log_end_offset, now, replica_lag_time_max)
    }
    kept = tuple(broker for broker in registration.isr if broker not in out)
    return change_to(registration, kept) if out else None


def maybe_expand_isr(
    registration: PartitionRegistration,
    log_end_offsets: Mapping[int, int],
    high_watermark: int,
    epoch_start: int,
    eligible: Mapping[int, int],
) -> IsrChange | None:
    """The ISR with the followers that have come far enough; None if there are none.

    `log_end_offsets` are from rows that count. The HW alone would not be enough: that of a new leader may be below what
    was committed before it, so a follower must also have reached the start of the leader's own epoch. `eligible`:
    brokers that are alive and not shutting down, with their broker epochs.

    Kafka: `Partition.maybeExpandIsr`, `isFollowerInSync`. KIP-841, KIP-903. [IS-04]
    """
    joiners = {
        broker: eligible[broker]
        for broker in registration.followers
        if broker not in registration.isr
        and broker in eligible
        and log_end_offsets.get(broker, -1) >= max(high_watermark, epoch_start)
    }
    isr = tuple(broker for broker in registration.replicas if broker in registration.isr or broker in joiners)
    return change_to(registration, isr, joiners) if joiners else None


def change_to(
    registration: PartitionRegistration, isr: tuple[int, ...], joiners: Mapping[int, int] | None = None
) -> IsrChange:
    """A change of a registration's ISR to `isr`."""
    return IsrChange(
        registration.topic_id_partition, registration.leader, registration.leader_epoch, registration.partition_epoch,
        isr, joiners or {},
    )  # fmt: skip


def alter_partition(
    current: PartitionRegistration | None, change: IsrChange, broker_epochs: Mapping[int, int]
) -> tuple[AlterIsrOutcome, PartitionRegistration | None]:
    """What a change makes of the registration that the metadata has now.

    It is applied to the registration it was decided on. One that is already there, one partition epoch later under the
    same leader, is this leader's own: nobody else changes the ISR within its epoch, so an answer that was lost is found
    again by what was written. Anything else has overtaken it. A joiner that has begun a new broker epoch may have lost
    its log, and what was seen of it says nothing any more.

    Kafka: `ReplicationControlManager.alterPartition`. KIP-497, KIP-903. [IS-05]
    """
    if current is None or (current.leader, current.leader_epoch) != (change.leader, change.leader_epoch):
        return AlterIsrOutcome.LOST, current
    if current.partition_epoch == change.partition_epoch + 1 and current.isr == change.isr:
        return AlterIsrOutcome.FOUND, current
    is_current = current.partition_epoch == change.partition_epoch
    if not is_current or any(broker_epochs.get(broker) != epoch for broker, epoch in change.joiners.items()):
        return AlterIsrOutcome.LOST, current
    kept = {member: epoch for member, epoch in current.isr_epochs.items() if member in change.isr}
    after = replace(current, isr=change.isr, partition_epoch=current.partition_epoch + 1)
    return AlterIsrOutcome.APPLIED, replace(after, isr_epochs={**kept, **change.joiners})


def fence_isr_changes(current: PartitionRegistration | None, broker_id: int) -> PartitionRegistration | None:
    """The registration once a follower has given up what it has: no change that was decided before takes it in.

    None where it must give up nothing: it is in the ISR, or no other broker leads. A leader decides on what a row said,
    and writes that later; by then the follower may have said that it is offline. A change of the row fails all that was
    decided on the row as it was, and after that no leader finds a row of this follower that lets it in. [OL-01, IS-05]
    """
    if current is None or current.leader in (NO_LEADER, LEADER_DURING_DELETE, broker_id) or broker_id in current.isr:
        return None
    return replace(current, partition_epoch=current.partition_epoch + 1)


def caught_up_replicas(
    registration: PartitionRegistration,
    progress: Mapping[int, FollowerProgress],
    counted: Collection[int],
    now: float,
    replica_lag_time_max: float,
) -> set[int]:
    """Followers outside the ISR that were caught up within the lag time: the HW waits for them, or they never join.

    Kafka: `Partition.maybeIncrementLeaderHW`, `shouldWaitForReplicaToJoinIsr`. [HW-01]
    """
    return {
        broker
        for broker in registration.followers
        if broker not in registration.isr
        and broker in counted
        and now - progress.get(broker, FollowerProgress()).caught_up_at <= replica_lag_time_max
    }
