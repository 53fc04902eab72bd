"""The duties of a leader: watch its followers, keep the ISR, raise the HW.

Kafka: `Partition`. Values in, values out: `server` looks after the clock and the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from lakelog.replication.protocol.replica import Replica


@dataclass(frozen=True)
class HostedPartition:
    """A partition that a broker is a replica of: what it knows of it, in memory.

    `progress`: a leader's followers. `pending`: a change of the ISR whose outcome is not known yet.
    """

    registration: PartitionRegistration
    high_watermark: int
    progress: Mapping[int, FollowerProgress] = field(default_factory=dict)
    pending: IsrChange | None = None


@dataclass(frozen=True)
class LeaderInputs:
    """What a leader looks at. `broker_epochs`: as registered; `eligible`: those alive and not shutting down, by epoch.

    `log` is the leader's own; `rows` what its followers say; `now` and `replica_lag_time_max` in seconds of its own
    monotonic clock; `min_isr` is `effective_min_isr`. `may_shrink`: lags are looked at every half lag time only.
    """

    log: PartitionLog
    rows: Mapping[int, Replica]
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
    """What followers know with the HWs of their leaders, or with their own where those are not given; none is above
    its log end: what is appended there next is not committed yet. [HW-03, TR-05]"""
    known = {p: (hosted[p], end) for p, end in log_ends.items() if p in hosted}
    return {
        p: replace(h, high_watermark=follower_high_watermark(leader_high_watermarks.get(p, h.high_watermark), end))
        for p, (h, end) in known.items()
    }


def host(
    before: HostedPartition | None, published: Replica | None, registration: PartitionRegistration, log: PartitionLog,
    broker_id: int, now: float,
) -> HostedPartition:  # fmt: skip
    """A replica at the beginning of a role. What it knew of followers is forgotten; members of the ISR count as caught
    up now. Its HW goes on from what it was here, or was when this broker last ran, as far as its log goes.

    Kafka: `Partition.makeLeader`, `Partition.makeFollower`, `LogManager` (checkpointed HW). [BL-05, HW-02]
    """
    last = before.high_watermark if before else published.high_watermark if published else 0
    high_watermark = max(min(last, log.log_end_offset), log.log_start_offset)
    leads = registration.leader == broker_id
    progress = {broker: FollowerProgress(caught_up_at=now) for broker in registration.isr} if leads else {}
    return HostedPartition(registration, high_watermark, progress)


def follow_registration(hosted: HostedPartition, registration: PartitionRegistration) -> HostedPartition:
    """The same role under a newer registration; an older one, as a late read brings it, changes nothing. [BL-08]"""
    is_same_role = registration.leader_epoch == hosted.registration.leader_epoch
    is_later = registration.partition_epoch > hosted.registration.partition_epoch
    return replace(hosted, registration=registration) if is_same_role and is_later else hosted


def observe_followers(hosted: HostedPartition, inputs: LeaderInputs) -> HostedPartition:
    """One look at the followers: how far they are, and which change of the ISR that calls for, if any.

    Only one change is under way at a time. A log that is not open at this epoch is nobody's to lead: another process
    of this broker, or a newer role, has come between.

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


def _counted(registration: PartitionRegistration, inputs: LeaderInputs) -> dict[int, int]:
    """LEOs of the followers whose rows count. [FE-03]"""
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
    """What is known once the outcome of the pending change is.

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
    """The HW as far as everybody has come who is, or may be by now, in the ISR.

    While a change is under way the larger set counts.

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
