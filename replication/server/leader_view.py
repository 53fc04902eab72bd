"""What a leader looks at: its own log, the rows of its followers, who lives, and the time. [FE-03]"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from replication.errors import LakelogException
from replication.protocol.leadership import Surroundings
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.server.follower_rows import FollowerRows, Rows
from replication.server.metadata_cache import MetadataCache
from replication.storage.replica_log import ReplicaLog

logger = logging.getLogger(__name__)


class LeaderView:
    """The surroundings of what one broker leads, looked at anew each time. Lags count every half lag time. [BR-03]"""

    def __init__(
        self, broker_id: int, log: ReplicaLog, cache: MetadataCache, replica_lag_time_max_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._log = log
        self._cache = cache
        self._replica_lag_time_max = replica_lag_time_max_ms / 1000
        self._clock = clock
        self._lag_looked_at = clock()
        self._unreadable: set[int] = set()
        self._seen: dict[TopicIdPartition, tuple[PartitionRegistration, float]] = {}
        self._rows = FollowerRows(self._read_rows, self._replica_lag_time_max / 2, clock)

    def look(self, led: Collection[PartitionRegistration]) -> dict[TopicIdPartition, Surroundings]:
        """What each led partition's leader looks at now. The log comes last: it tells whether this process is still the
        broker's, and what has been decided on older metadata than that is refused by its partition epoch."""
        self._seen = {r.topic_id_partition: self._first_seen(r) for r in led}
        rows = self._follower_rows({broker for r in led for broker in r.followers})
        epochs = {broker: registration.broker_epoch for broker, registration in self._cache.brokers().items()}
        alive = {broker: epochs[broker] for broker in self._cache.alive_brokers()}
        state, now = self._log.refresh(), self._clock()
        may_shrink = now - self._lag_looked_at >= self._replica_lag_time_max / 2
        self._lag_looked_at = now if may_shrink else self._lag_looked_at
        return {
            p: Surroundings(
                state.known(p), {b: rows[b][p] for b in r.followers if b in rows and p in rows[b]}, epochs,
                self._eligible(r, alive), now, self._replica_lag_time_max, self._cache.min_isr(r), may_shrink,
            )
            for p, r in ((r.topic_id_partition, r) for r in led)
        }  # fmt: skip

    def _first_seen(self, registration: PartitionRegistration) -> tuple[PartitionRegistration, float]:
        known = self._seen.get(registration.topic_id_partition)
        return known if known is not None and known[0] == registration else (registration, self._clock())

    def _eligible(self, registration: PartitionRegistration, alive: Mapping[int, int]) -> dict[int, int]:
        """Who may join the ISR: those whose rows were read under this very registration. Older rows, of a root that
        hangs, may show in order what its broker has given up since; the registration has moved because of that.
        [IS-04, OL-01]"""
        _, since = self._seen[registration.topic_id_partition]
        looked = self._rows.began_at
        return {b: alive[b] for b in registration.followers if b in alive and looked.get(b, since) >= since}

    def _read_rows(self, broker: int) -> Rows:
        table = self._cache.replica_table(broker)
        table.refresh()
        return table.replicas

    def _follower_rows(self, brokers: Collection[int]) -> dict[int, Rows]:
        rows: dict[int, Rows] = {}
        for broker, found in self._rows.look(brokers).items():
            if isinstance(found, LakelogException):
                self._say_once(broker, found)
            else:
                rows[broker] = found
                self._unreadable.discard(broker)
        return rows

    def _say_once(self, broker: int, error: LakelogException) -> None:
        """A root that is away is away for many looks."""
        if broker not in self._unreadable:
            self._unreadable.add(broker)
            logger.warning("broker %d: replicas of broker %d cannot be read: %s", self._broker_id, broker, error)
