"""Throttles: limits in bytes/s for the replication of replicas that are out of sync.

Callers pass `now`, in seconds of their monotonic clock. Kafka: `ReplicationQuotaManager`, `Rate`. KIP-73.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from lakelog.replication.protocol.partition_log import PartitionLog, PlacedBatch
from lakelog.replication.protocol.partition_registration import PartitionRegistration

ALL: Final = "*"
UNLIMITED: Final = 2**63 - 1
WINDOWS: Final = 11
WINDOW_SECONDS: Final = 1.0

_MEMORY: Final = WINDOWS * WINDOW_SECONDS
_MOST_SAMPLES: Final = 10 * WINDOWS


class Sample(NamedTuple):
    """The bytes of one window, and the time in seconds when it began."""

    began: float
    total: int


@dataclass(frozen=True)
class Quota:
    """A bound in bytes/s, and the samples under it, oldest first."""

    bound: int = UNLIMITED
    samples: tuple[Sample, ...] = ()


def is_throttled(throttled_replicas: str, partition: int, broker_id: int) -> bool:
    """Whether a topic's setting names the replica: `*` names all; `0:1,0:2` names partition 0 on brokers 1 and 2.

    Kafka: `ReplicationQuotaManager.isThrottled`. KIP-73. [TH-02]
    """
    pairs = [pair.split(":") for pair in throttled_replicas.split(",") if ":" in pair]
    return throttled_replicas == ALL or [partition, broker_id] in [[int(part) for part in pair] for pair in pairs]


def should_follower_throttle(is_throttled: bool, is_exceeded: bool, is_in_sync: bool) -> bool:
    """Whether to leave a partition out of a fetch: it is throttled and out of sync, and the quota is exceeded.

    A member of the ISR, or a replica about to join it, is never throttled: it would fall out, catch up, and fall out
    again. Kafka: `ReplicaFetcherThread.shouldFollowerThrottle`, `ReplicaManager.shouldLeaderThrottle`. KIP-73. [TH-01]
    """
    return is_throttled and is_exceeded and not is_in_sync


def throttled_followers(
    leader: int, registrations: Iterable[PartitionRegistration], throttled_replicas: Mapping[str, str]
) -> frozenset[int]:
    """The brokers that share a leader's rate: those with an out-of-sync replica that is throttled at the leader.

    `throttled_replicas`: `leader.replication.throttled.replicas` of each topic. In Kafka the leader serves fetches and
    counts their bytes. Here followers do not ask the leader, so each follower computes the same share from shared
    tables. [TH-02]
    """
    return frozenset(
        broker
        for r in registrations
        if r.leader == leader and is_throttled(throttled_replicas.get(r.topic, ""), r.partition, leader)
        for broker in r.replicas
        if broker not in r.isr
    )


def leader_share(rate: int, followers: int) -> int:
    """Each follower's equal share of a leader's rate in bytes/s, at least 1. Rates of 0 and UNLIMITED stay. [TH-02]"""
    return rate if rate in (0, UNLIMITED) else max(1, rate // max(1, followers))


def bytes_between(log: PartitionLog, start: int, stop: int) -> int:
    """The size in bytes of the batches that begin from offset `start` up to, but not at, `stop`."""
    first = bisect_left(log.batches, start, key=_base_offset)
    return sum(
        batch.header.retained.bytes for batch in log.batches[first : bisect_left(log.batches, stop, key=_base_offset)]
    )


def _base_offset(batch: PlacedBatch) -> int:
    return batch.base_offset


def under_bound(quota: Quota, bound: int) -> Quota:
    """The quota with this bound. A new bound drops the samples, because the old bound allowed them. [TH-02]"""
    return quota if bound == quota.bound else Quota(bound)


def recorded(quota: Quota, now: float, total: int) -> Quota:
    """The quota after `total` more bytes. Kafka: `ReplicationQuotaManager.record`. [TH-02]"""
    samples = _live(quota, now)
    if samples and now < samples[-1].began + WINDOW_SECONDS:
        return Quota(quota.bound, (*samples[:-1], Sample(samples[-1].began, samples[-1].total + total)))
    return Quota(quota.bound, (*samples, Sample(now, total))[-_MOST_SAMPLES:])


def rate(quota: Quota, now: float) -> float:
    """The rate in bytes/s over the samples that count, and over at least one window.

    Kafka: `SimpleRate.measure`. [TH-02]
    """
    samples = _live(quota, now)
    return _total(samples) / _seconds(samples, now)


def is_exceeded(quota: Quota, now: float) -> bool:
    """Whether the rate is above the bound; a bound of 0 allows nothing.

    Kafka: `ReplicationQuotaManager.isQuotaExceeded`. [TH-02]
    """
    return quota.bound == 0 or rate(quota, now) > quota.bound


def allowance(quota: Quota, now: float) -> int:
    """The bytes that a fetch may take now without exceeding the quota. [TH-02]"""
    samples = _live(quota, now)
    return max(0, int(quota.bound * _seconds(samples, now)) - _total(samples))


def seconds_to_wait(quota: Quota, now: float) -> float:
    """Seconds until the rate falls to the bound if nothing is fetched meanwhile.

    At least one window, because every fetch has a fixed cost. At most the span of all windows, because the bound may
    have changed by then. [TH-01]
    """
    samples = _live(quota, now)
    due = samples[0].began + _total(samples) / quota.bound if samples and quota.bound else now + _MEMORY
    return min(max(due - now, WINDOW_SECONDS), _MEMORY)


def _live(quota: Quota, now: float) -> tuple[Sample, ...]:
    """The samples that count: those of the last 11 windows, and older ones that the bound has not paid off yet.

    Kafka forgets all older samples, as its fetches are small. Here the first batch of a fetch may be a whole file with
    more bytes than 11 windows allow. If it were forgotten, the rate would stay a multiple of the bound for ever. Many
    such samples exist only while members of the ISR, which never wait, exceed the bound; `_MOST_SAMPLES` limits them.
    """
    return tuple(s for s in quota.samples if now - s.began < _MEMORY or s.total > quota.bound * (now - s.began))


def _total(samples: Iterable[Sample]) -> int:
    return sum(sample.total for sample in samples)


def _seconds(samples: tuple[Sample, ...], now: float) -> float:
    return max(now - samples[0].began, WINDOW_SECONDS) if samples else WINDOW_SECONDS
