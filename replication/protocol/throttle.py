"""Throttles: how many bytes a second may be replicated to replicas that are out of sync.

Kafka: `ReplicationQuotaManager`, `Rate`. KIP-73. Who asks brings the time, in seconds of its monotonic clock.
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
    """Bytes of one window, and when it began."""

    began: float
    total: int


@dataclass(frozen=True)
class Quota:
    """A bound in bytes a second, and what was replicated under it: the samples, oldest first."""

    bound: int = UNLIMITED
    samples: tuple[Sample, ...] = ()


def is_throttled(throttled_replicas: str, partition: int, broker_id: int) -> bool:
    """Whether a topic's setting names the replica: `*` is all of them, `0:1,0:2` partition 0 on brokers 1 and 2.

    Kafka: `ReplicationQuotaManager.isThrottled`. KIP-73. [TH-02]
    """
    pairs = [pair.split(":") for pair in throttled_replicas.split(",") if ":" in pair]
    return throttled_replicas == ALL or [partition, broker_id] in [[int(part) for part in pair] for pair in pairs]


def should_follower_throttle(is_throttled: bool, is_exceeded: bool, is_in_sync: bool) -> bool:
    """A partition is left out of a fetch if it is throttled, the quota is exceeded, and the replica is not in sync.

    Never a member of the ISR, nor who is about to be one: it would fall out, catch up, and fall out again. Kafka:
    `ReplicaFetcherThread.shouldFollowerThrottle`, `ReplicaManager.shouldLeaderThrottle`. KIP-73. [TH-01]
    """
    return is_throttled and is_exceeded and not is_in_sync


def throttled_followers(
    leader: int, registrations: Iterable[PartitionRegistration], throttled_replicas: Mapping[str, str]
) -> frozenset[int]:
    """The brokers that share what a leader may send: those with a replica out of sync that is throttled at it.

    `throttled_replicas`: `leader.replication.throttled.replicas` by topic. In Kafka the leader serves, and counts;
    here nobody asks it, so that every follower has to come to the same answer from what all of them can read. [TH-02]
    """
    return frozenset(
        broker
        for r in registrations
        if r.leader == leader and is_throttled(throttled_replicas.get(r.topic, ""), r.partition, leader)
        for broker in r.replicas
        if broker not in r.isr
    )


def leader_share(rate: int, followers: int) -> int:
    """What one of `followers` may fetch of a leader's rate: as much as any other of them, and something. [TH-02]"""
    return rate if rate in (0, UNLIMITED) else max(1, rate // max(1, followers))


def bytes_between(log: PartitionLog, start: int, stop: int) -> int:
    """The size of the batches that begin between two offsets: what a follower has fetched that has come so far."""
    first = bisect_left(log.batches, start, key=_base_offset)
    return sum(batch.header.bytes for batch in log.batches[first : bisect_left(log.batches, stop, key=_base_offset)])


def _base_offset(batch: PlacedBatch) -> int:
    return batch.base_offset


def under_bound(quota: Quota, bound: int) -> Quota:
    """The quota with a bound. Another one counts from now on: what was fetched before was allowed then. [TH-02]"""
    return quota if bound == quota.bound else Quota(bound)


def recorded(quota: Quota, now: float, total: int) -> Quota:
    """The quota after that many bytes more. Kafka: `ReplicationQuotaManager.record`. [TH-02]"""
    samples = _live(quota, now)
    if samples and now < samples[-1].began + WINDOW_SECONDS:
        return Quota(quota.bound, (*samples[:-1], Sample(samples[-1].began, samples[-1].total + total)))
    return Quota(quota.bound, (*samples, Sample(now, total))[-_MOST_SAMPLES:])


def rate(quota: Quota, now: float) -> float:
    """Bytes a second, over the windows that count; over one window at least.

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
    """How many bytes may be taken at once without exceeding the quota. [TH-02]"""
    samples = _live(quota, now)
    return max(0, int(quota.bound * _seconds(samples, now)) - _total(samples))


def seconds_to_wait(quota: Quota, now: float) -> float:
    """How long to leave out what exceeds the quota: until the rate has come down to the bound, if nothing is added.

    For a window at least, since every fetch has a cost of its own, whatever it brings; and not for longer than the
    windows go back, since the bound may be another one by then. [TH-01]
    """
    samples = _live(quota, now)
    due = samples[0].began + _total(samples) / quota.bound if samples and quota.bound else now + _MEMORY
    return min(max(due - now, WINDOW_SECONDS), _MEMORY)


def _live(quota: Quota, now: float) -> tuple[Sample, ...]:
    """The samples that count: those that began within the last 11 windows, and older ones that are not paid for.

    In Kafka the latter are forgotten too, as a fetch is small there. Here the first batch of a fetch may be a whole
    file, more than 11 windows allow: forgotten after these, the rate would be a multiple of the bound for ever. They
    are many only where members of the ISR, which never wait, are above the bound: hence the end to their number.
    """
    return tuple(s for s in quota.samples if now - s.began < _MEMORY or s.total > quota.bound * (now - s.began))


def _total(samples: Iterable[Sample]) -> int:
    return sum(sample.total for sample in samples)


def _seconds(samples: tuple[Sample, ...], now: float) -> float:
    return max(now - samples[0].began, WINDOW_SECONDS) if samples else WINDOW_SECONDS
