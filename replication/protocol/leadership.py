"""A leader's duties: it watches its followers, maintains the ISR and raises the HW.

Kafka: `Partition`. `server` has the clock and the tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from lakelog.replication.protocol.fencing import row_counts
from lakelog.replication.protocol.high_watermark import follower_high_watermark, leader_high_watermark
from lakelog.replication.protocol.isr import (
    AlterIsrOutcome,
    FollowerProgress,
    IsrChange,
    caught_up_replicas,
    maybe_expand_isr,
    maybe_shrink_isr,
    observe,
)
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus


@dataclass(frozen=True)
class HostedPartition:
    """A partition with a replica on this broker, as the broker knows it in memory.

    `progress`: the followers' progress, if this broker leads. `pending`: a change of the ISR without a known outcome.
    """

    registration: PartitionRegistration
    high_watermark: int
    progress: Mapping[int, FollowerProgress] = field(default_factory=dict)
    pending: IsrChange | None = None


@dataclass(frozen=True)
class LeaderInputs:
    """A leader's view at one poll.

    `log`: the leader's own log. `rows`: its followers' rows. `broker_epochs`: of all registered brokers. `eligible`:
    the broker epochs of brokers that may join the ISR. `now` and `replica_lag_time_max`: in seconds, of the leader's
    monotonic clock. `min_isr`: from `effective_min_isr`. `may_shrink`: whether this poll may shrink the ISR; one poll
    in each half of the lag time may.
    """

    log: PartitionLog
    rows: Mapping[int, ReplicaStatus]
    broker_epochs: Mapping[int, int]
    eligible: Mapping[int, int]
    now: float
    replica_lag_time_max: float
    min_isr: int
    may_shrink: bool


def follow_high_watermarks(
    hosted: Mapping[TopicIdPartition, HostedPartition], log_ends: Mapping[TopicIdPartition, int],
    leader_high_watermarks: Mapping[TopicIdPartition, int],
) -> dict[TopicIdPartition, HostedPartition]:  # fmt: skip
    """The followers' state with their leaders' HWs, or with their own HW where none is given.

    No HW is above its log end: records that are appended there next are not committed yet. [HW-03, TR-05]
    """
    known = {p: (hosted[p], end) for p, end in log_ends.items() if p in hosted}
    found = {
        p: follower_high_watermark(leader_high_watermarks.get(p, h.high_watermark), end)
        for p, (h, end) in known.items()
    }
    return {
        p: h if h.high_watermark == found[p] else replace(h, high_watermark=found[p]) for p, (h, _) in known.items()
    }


def host(
    before: HostedPartition | None, published: ReplicaStatus | None, registration: PartitionRegistration,
    log: PartitionLog, broker_id: int, now: float,
) -> HostedPartition:  # fmt: skip
    """A replica at the beginning of a role. Progress of followers is reset; ISR members count as caught up at `now`.

    The HW continues from memory, or from the published row, within the log's bounds.

    Kafka: `Partition.makeLeader`, `Partition.makeFollower`, `LogManager` (checkpointed HW). [BL-05, HW-02]
    """
    last = before.high_watermark if before else published.high_watermark if published else 0
    high_watermark = max(min(last, log.log_end_offset), log.log_start_offset)
    leads = registration.leader == broker_id
    progress = {broker: FollowerProgress(caught_up_at=now) for broker in registration.isr} if leads else {}
    return HostedPartition(registration, high_watermark, progress)


def follow_registration(hosted: HostedPartition, registration: PartitionRegistration) -> HostedPartition:
    """Takes a newer registration under the same leader epoch. A late read of an older one changes nothing. [BL-08]"""
    is_same_role = registration.leader_epoch == hosted.registration.leader_epoch
    is_later = registration.partition_epoch > hosted.registration.partition_epoch
    return replace(hosted, registration=registration) if is_same_role and is_later else hosted


def observe_followers(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    """Updates the followers' progress, and decides on a change of the ISR if one is needed.

    Only one change is pending at a time. If the log does not lead at this epoch, nothing changes: another process of
    this broker, or a newer role, has taken over.

    Kafka: `Partition.updateFollowerFetchState`, `maybeShrinkIsr`, `maybeExpandIsr`. [FE-03, IS-01, IS-04]
    """
    registration = hosted.registration
    if not inputs.log.role.leads_at(registration.leader_epoch):
        return hosted
    end = inputs.log.log_end_offset
    counted = _counted(registration, inputs)
    progress = {broker: hosted.progress.get(broker, FollowerProgress()) for broker in registration.followers}
    progress.update({broker: observe(progress[broker], leo, end, inputs.now) for broker, leo in counted.items()})
    seen = replace(hosted, progress=progress)
    return replace(seen, pending=seen.pending or _isr_change(seen, counted, inputs))


def still_caught_up(hosted: HostedPartition, followers: Collection[int], now: float) -> HostedPartition:
    """The partition as if `observe_followers` had seen the same rows and the same log again at `now`, in seconds:
    followers that were caught up are so at that time too. [IS-03]"""
    if not followers:
        return hosted
    seen = {b: replace(hosted.progress[b], caught_up_at=now, seen_at=now) for b in followers}
    return replace(hosted, progress={**hosted.progress, **seen})


def caught_up(before: HostedPartition, after: HostedPartition) -> tuple[int, ...]:
    """The followers that `observe_followers` has found caught up when it made `after` of `before`."""
    return tuple(
        broker
        for broker, progress in after.progress.items()
        if progress is not before.progress.get(broker) and progress.log_end_offset >= progress.leader_end_offset_then
    )


def next_lag_time_passes_at(hosted: HostedPartition, caught_up: Collection[int], inputs: LeaderInputs) -> float:
    """When the next follower will have been out of sync for the lag time if nothing but time changes, in seconds.
    Infinity if none will. [IS-02, HW-01]"""
    lag_time = inputs.replica_lag_time_max
    return min(
        (
            progress.caught_up_at + lag_time
            for broker, progress in hosted.progress.items()
            if broker not in caught_up and inputs.now - progress.caught_up_at <= lag_time
        ),
        default=float("inf"),
    )


def has_member_out_of_sync(hosted: HostedPartition, inputs: LeaderInputs) -> bool:
    """Whether the ISR shrinks at the next poll that may shrink it, if nothing changes until then. [IS-01]"""
    end, lag_time = inputs.log.log_end_offset, inputs.replica_lag_time_max
    return maybe_shrink_isr(hosted.registration, hosted.progress, end, inputs.now, lag_time) is not None


def _counted(registration: PartitionRegistration, inputs: LeaderInputs) -> dict[int, int]:
    """The LEOs of the followers whose rows count. [FE-03]"""
    return {
        broker: inputs.rows[broker].log_end_offset
        for broker in registration.followers
        if row_counts(inputs.rows.get(broker), registration, inputs.broker_epochs, inputs.log)
    }


def _isr_change(hosted: HostedPartition, counted: Mapping[int, int], inputs: LeaderInputs) -> IsrChange | None:
    registration, end = hosted.registration, inputs.log.log_end_offset
    shrunk = maybe_shrink_isr(registration, hosted.progress, end, inputs.now, inputs.replica_lag_time_max)
    if shrunk and inputs.may_shrink:
        return shrunk
    return maybe_expand_isr(registration, counted, hosted.high_watermark, inputs.log.epoch_start, inputs.eligible)


def settle_isr_change(
    hosted: HostedPartition, outcome: AlterIsrOutcome, current: PartitionRegistration | None
) -> HostedPartition:
    """The partition after its pending change has an outcome; `current` is the registration that holds now.

    Kafka: `Partition.handleAlterPartitionUpdate`. [IS-05]
    """
    if hosted.pending is None:
        return hosted
    is_in_force = outcome != AlterIsrOutcome.LOST
    settled = replace(hosted, pending=None)
    if is_in_force and current is not None:
        return replace(settled, registration=current)
    return follow_registration(settled, current) if current is not None else settled


def raise_high_watermark(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    """Raises the HW to the lowest LEO of the replicas that are, or may be, in the ISR. A pending change counts too.

    Kafka: `Partition.maybeIncrementLeaderHW`. KIP-497, KIP-966. [HW-01]
    """
    registration = hosted.registration
    if not inputs.log.role.leads_at(registration.leader_epoch):
        return hosted
    counted = _counted(registration, inputs)
    waited_for = caught_up_replicas(
        registration, hosted.progress, counted, inputs.now, inputs.replica_lag_time_max
    ) | set(hosted.pending.isr if hosted.pending else ())
    high_watermark = leader_high_watermark(
        hosted.high_watermark, inputs.log.log_end_offset, counted, registration.isr, registration.leader,
        waited_for - set(registration.isr), inputs.min_isr,
    )  # fmt: skip
    return replace(hosted, high_watermark=high_watermark)
