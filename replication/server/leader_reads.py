"""The reads of a leader round: the rows of followers, the live brokers and the broker's own log. [FE-03]"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.rounds.steps import (
    ClusterView,
    FollowersSeen,
    LogsSeen,
    ReadCluster,
    ReadFollowerRows,
    ReadLog,
)
from lakelog.replication.server.follower_rows import FollowerRows, Rows
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.log.recent_changes import LogMark
from lakelog.replication.storage.log.replica_log import ReplicaLog

logger = logging.getLogger(__name__)


class LeaderReads:
    """Answers the reads of one broker's rounds from tables and from its cache."""

    def __init__(
        self, broker_id: int, log: ReplicaLog, cache: MetadataCache, replica_lag_time_max_ms: int,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._log = log
        self._cache = cache
        self._unreadable: set[int] = set()
        self._looked_at: dict[int, float] = {}
        self._patience = min(LONGEST_SECONDS, replica_lag_time_max_ms / 3000)
        self._rows = FollowerRows(
            self._read_rows, replica_lag_time_max_ms / 2000, clock, self._looked_at.__getitem__, cache.wake
        )

    def follower_rows(self, step: ReadFollowerRows) -> FollowersSeen:
        """The rows of followers. A broker whose rows cannot be read is left out, and logged once."""
        rows: dict[int, Rows] = {}
        for broker, found in self._rows.look(step.brokers).items():
            if isinstance(found, LakelogException):
                self._say_once(broker, found)
            else:
                rows[broker] = found
                self._unreadable.discard(broker)
        return FollowersSeen(rows, self._rows.began_at)

    def cluster(self, _: ReadCluster) -> ClusterView:
        """The epochs of registered and of live brokers, and each partition's min ISR, from the cache."""
        epochs = {broker: registration.broker_epoch for broker, registration in self._cache.brokers().items()}
        alive = {broker: epochs[broker] for broker in self._cache.alive_brokers()}
        return ClusterView(epochs, alive, self._cache.min_isr, self._cache.topics)

    def log(self, step: ReadLog) -> LogsSeen:
        """The broker's log as last found. Raises StaleBrokerEpochException once a newer process has claimed it."""
        state = self._log.refresh(LONGEST_SECONDS)
        mark = LogMark.of(state)
        return LogsSeen(state.known, step.since.changed(mark) if isinstance(step.since, LogMark) else None, mark)

    def _read_rows(self, broker: int) -> Rows:
        table = self._cache.replica_table(broker)
        table.poll(self._patience)
        # Rows may come from a look of another thread. It is asked for before the rows, which may be newer then.
        self._looked_at[broker] = table.looked_at
        return table.replicas

    def _say_once(self, broker: int, error: LakelogException) -> None:
        """Logs once that a root cannot be read: it may stay so for many rounds."""
        if broker not in self._unreadable:
            self._unreadable.add(broker)
            logger.warning("broker %d: replicas of broker %d cannot be read: %s", self._broker_id, broker, error)
