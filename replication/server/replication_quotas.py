"""The replication quotas of one broker, in bytes/s: how fast it may fetch throttled replicas, and how fast its own
followers fetch them.

Kafka: `ReplicationQuotaManager`; a broker has one as a leader and one as a follower. Here no leader serves fetches, so
each follower also keeps to its share of the leader's quota. KIP-73. [TH-01, TH-02]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from lakelog.replication.protocol.append_plan import ByteLimit
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_registration import PartitionRegistration, Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_round import Throttled
from lakelog.replication.protocol.throttle import (
    UNLIMITED,
    Quota,
    allowance,
    bytes_between,
    is_exceeded,
    is_throttled,
    leader_share,
    rate,
    recorded,
    seconds_to_wait,
    should_follower_throttle,
    throttled_followers,
    under_bound,
)
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.storage.log.log_state import LogState

_LEADER_REPLICAS = "leader.replication.throttled.replicas"
_FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
_OWN = -1  # the key of the broker's own quota as a follower; the other keys are ids of leaders


class ReplicationQuotas:
    """All quotas of one broker, and the bytes that count against them. Any thread may use it."""

    def __init__(self, broker_id: int, cache: MetadataCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._clock = clock
        self._lock = threading.Lock()
        self._quotas: dict[int, Quota] = {}
        self._leader = Quota()
        self._log_ends: dict[tuple[TopicIdPartition, int, int], int] = {}

    def throttle(self, leader: int, lags: Mapping[TopicIdPartition, int]) -> Throttled:
        """Of the partitions that are fetched from a leader: those that must wait, each with its seconds, and how many
        bytes the others may take.

        `lags`: for each partition, the leader's HW minus the fetch offset, in records. A replica without a lag counts
        as in sync: the leader may already have added it to the ISR, in metadata newer than ours. Kafka:
        `PartitionFetchState.isReplicaInSync`, `ReplicaFetcherThread.shouldFollowerThrottle`. [TH-01]
        """
        followed, now = self._registrations(lags), self._clock()
        in_sync = {p for p, r in followed.items() if self._broker_id in r.isr or lags[p] <= 0}
        left_out: dict[TopicIdPartition, float] = {}
        limits = []
        for key, throttled in self._throttled(leader, followed):
            with self._lock:
                quota = self._quotas[key] = under_bound(self._quotas.get(key, Quota()), self._bound(key))
            is_over, wait = is_exceeded(quota, now), seconds_to_wait(quota, now)
            for partition in followed:
                if should_follower_throttle(partition in throttled, is_over, partition in in_sync):
                    left_out[partition] = max(wait, left_out.get(partition, 0))
            if quota.bound < UNLIMITED:
                limits.append(ByteLimit(frozenset(throttled - in_sync), allowance(quota, now)))
        return Throttled(left_out, tuple(limits))

    def record(self, leader: int, fetched: Mapping[TopicIdPartition, int]) -> None:
        """Counts the bytes fetched of each throttled partition, in sync or not, as Kafka does. [TH-02]"""
        now = self._clock()
        for key, throttled in self._throttled(leader, self._registrations(fetched)):
            with self._lock:
                total = sum(fetched[partition] for partition in throttled)
                self._quotas[key] = recorded(self._quotas.get(key, Quota()), now, total)

    def _registrations(self, partitions: Iterable[TopicIdPartition]) -> Registrations:
        known = self._cache.partitions
        return {partition: known[partition] for partition in partitions if partition in known}

    def _throttled(self, leader: int, followed: Registrations) -> Iterator[tuple[int, set[TopicIdPartition]]]:
        """The keys of the quotas that apply, each with its throttled partitions. A replica may be throttled as a
        follower here, at its leader, or both."""
        for key, setting, broker in ((_OWN, _FOLLOWER_REPLICAS, self._broker_id), (leader, _LEADER_REPLICAS, leader)):
            texts = self._cache.throttled_replicas(setting)
            known = followed if texts else {}
            throttled = {p for p, r in known.items() if is_throttled(texts.get(r.topic, ""), r.partition, broker)}
            if throttled:
                yield key, throttled

    def _bound(self, key: int) -> int:
        if key == _OWN:
            return self._cache.config_of_broker(self._broker_id).follower_replication_throttled_rate
        texts = self._cache.throttled_replicas(_LEADER_REPLICAS)
        followers = throttled_followers(key, self._cache.partitions.values(), texts)
        return leader_share(self._cache.config_of_broker(key).leader_replication_throttled_rate, len(followers))

    def poll_followers(self, led: Callable[[], Iterable[PartitionRegistration]], log: LogState) -> None:
        """Counts the bytes that followers have fetched of partitions throttled at this leader, by the LEOs in their
        rows. It asks for the led partitions only if a topic has throttled replicas. [TH-02]"""
        before, texts = self._log_ends, self._cache.throttled_replicas(_LEADER_REPLICAS)
        known = led() if texts else ()
        throttled = [r for r in known if is_throttled(texts.get(r.topic, ""), r.partition, self._broker_id)]
        self._log_ends = {
            (r.topic_id_partition, r.leader_epoch, broker): end
            for r in throttled
            for broker, end in self._ends(r).items()
        }
        ends = self._log_ends.items()
        total = sum(bytes_between(log.partition(key[0]), before.get(key, end), end) for key, end in ends)
        if total:
            with self._lock:
                self._leader = recorded(self._leader, self._clock(), total)

    def _ends(self, registration: PartitionRegistration) -> dict[int, int]:
        """The LEO of each follower, throttled or not. A Truncating replica is left out, as its LEO may still fall."""
        ends = {}
        for broker in registration.followers:
            row = self._cache.last_rows(broker).get(registration.topic_id_partition)
            if row and row.leader_epoch == registration.leader_epoch and row.state != FollowerState.TRUNCATING:
                ends[broker] = row.log_end_offset
        return ends

    def figures(self) -> dict[str, int | None]:
        """Quotas and rates in bytes/s, by column of `brokers`; a quota without a bound is None. [TH-02]"""
        config, now = self._cache.config_of_broker(self._broker_id), self._clock()
        leads, follows = config.leader_replication_throttled_rate, config.follower_replication_throttled_rate
        with self._lock:
            return {
                "leader_replication_quota": None if leads == UNLIMITED else leads,
                "leader_replication_rate": round(rate(self._leader, now)),
                "follower_replication_quota": None if follows == UNLIMITED else follows,
                "follower_replication_rate": round(rate(self._quotas.get(_OWN, Quota()), now)),
            }
