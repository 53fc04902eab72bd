"""The in-sync replicas. The leader decides on a change of the ISR and commits it to `metadata` by compare-and-set.

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
    """A follower's progress as its leader sees it; times are in seconds of the leader's monotonic clock.

    `leader_end_offset_then`: the LEO that the leader had at `seen_at`. The follower was caught up at that time once it
    reaches this LEO.
    """

    log_end_offset: int = -1
    caught_up_at: float = NEVER_CAUGHT_UP
    seen_at: float = NEVER_CAUGHT_UP
    leader_end_offset_then: int = 0


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A new ISR that a leader proposes. It applies only to the registration with exactly this `partition_epoch`.

    `joiners`: the broker epoch of each broker that joins. After an unanswered attempt the leader repeats the same
    change until it knows the outcome; only then it decides on another.
    """

    topic_id_partition: TopicIdPartition
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    joiners: Mapping[int, int] = field(default_factory=dict)


class AlterIsrOutcome(enum.Enum):
    """The outcome of a change of the ISR."""

    APPLIED = "applied"
    FOUND = "found: an earlier attempt had won"
    LOST = "lost: the registration it was decided on is gone"


# The outcome of each change, and the registration after it.
IsrOutcomes: TypeAlias = Mapping[TopicIdPartition, tuple[AlterIsrOutcome, PartitionRegistration | None]]


def observe(
    progress: FollowerProgress, log_end_offset: int, leader_log_end_offset: int, now: float
) -> FollowerProgress:
    """A follower's progress after the leader has read its row again.

    The follower is caught up now if it has reached the leader's LEO. It was caught up at an earlier poll if it has now
    reached the LEO that the leader had then. So a follower that is always slightly behind a busy leader stays in sync.
    The leader keeps that earlier LEO as the target until the follower reaches it: it looks many times during one fetch,
    and a new target at each poll would move the goal. In Kafka a poll is a fetch.

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
    """Whether a follower lacks records and was last caught up more than `replica_lag_time_max` seconds ago.

    Kafka: `Partition.isFollowerOutOfSync`. [IS-02]
    """
    return progress.log_end_offset != leader_log_end_offset and now - progress.caught_up_at > replica_lag_time_max


def maybe_shrink_isr(
    registration: PartitionRegistration,
    progress: Mapping[int, FollowerProgress],
    leader_log_end_offset: int,
    now: float,
    replica_lag_time_max: float,
) -> IsrChange | None:
    """The change that removes every follower that is out of sync; None if there is none. Times are in seconds.

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
    """The change that adds every follower that has caught up; None if there is none.

    The HW alone is no sufficient target: a new leader's HW may be below records that were committed before it. So a
    follower must also reach the start of the leader's own epoch. `log_end_offsets`: from rows that count. `eligible`:
    the broker epochs of brokers that are alive and not shutting down.

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
    """The change of this registration's ISR to `isr`."""
    return IsrChange(
        registration.topic_id_partition, registration.leader, registration.leader_epoch, registration.partition_epoch,
        isr, joiners or {},
    )  # fmt: skip


def alter_partition(
    current: PartitionRegistration | None, change: IsrChange, broker_epochs: Mapping[int, int]
) -> tuple[AlterIsrOutcome, PartitionRegistration | None]:
    """The outcome of a change, and the registration after it.

    The change applies only to the partition epoch on which it was decided. If the same ISR is already there, one
    partition epoch later and under the same leader epoch, an earlier attempt won and its answer was lost: only this
    leader changes the ISR within its epoch. Any other registration has overtaken the change. It also loses if a joiner
    has a new broker epoch, because that broker may have lost its log.

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
    """The registration with a higher partition epoch, so that no earlier change of the ISR can add this broker.

    A broker commits this before it gives up records of an offline replica. A leader may have read the replica's row
    when it was in order and be about to add it to the ISR. After this commit that change loses, and later polls find
    the replica offline. None if the broker must keep its records: it is in the ISR, or no other broker leads. [OL-01,
    IS-05]
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
    """Followers outside the ISR that were caught up within the lag time, in seconds. The HW waits for them; otherwise
    they could never join.

    Kafka: `Partition.maybeIncrementLeaderHW`, `shouldWaitForReplicaToJoinIsr`. [HW-01]
    """
    return {
        broker
        for broker in registration.followers
        if broker not in registration.isr
        and broker in counted
        and now - progress.get(broker, FollowerProgress()).caught_up_at <= replica_lag_time_max
    }
