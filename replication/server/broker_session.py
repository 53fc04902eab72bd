"""The work of a broker under one broker epoch: its log, its replicas, its fetchers and its log maintenance.

A session ends when the broker stops or its root fails. Once the root works again, a new session begins under a new
epoch. Kafka: `ReplicaManager` and `LogManager`, as `KafkaServer.startup` makes them. [BR-01, OL-02]
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.broker_registration import LogIdentity
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.fetcher.fetch_runner import FetchContext, FetchRunner
from lakelog.replication.server.fetcher.fetch_states import SharedFetchStates
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.server.log_maintenance import LogMaintenance
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.pause_point import PausePoint
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId, ReplicaFetcherManager, SourceBroker
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.server.replication_quotas import FetcherQuotas, ReplicationQuotas
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_identity import identify
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerContext:
    """The parts of a broker that last as long as its process, even if its root fails."""

    broker_id: int
    spark: SparkSession
    cluster: Cluster
    config: Config
    root: StorageRoot
    registry: BrokerTable
    cache: MetadataCache
    pause_point: PausePoint


class BrokerSession:
    """The work under one registration. The broker's own thread calls `tick` once a round."""

    def __init__(self, context: BrokerContext, broker_epoch: int, log: ReplicaLog, table: ReplicaTable) -> None:
        self.broker_epoch = broker_epoch
        self._context = context
        self._log, self._table = log, table
        self._log_identity = identify(log)
        config, name = context.config, f"broker-{context.broker_id}"
        self._divergences: Counter[TopicIdPartition] = Counter()  # how often a log's history differed from its leader's
        self.quotas = ReplicationQuotas(context.broker_id, context.cache)
        self.fetcher_manager = ReplicaFetcherManager(config.num_replica_fetchers, self._create_fetcher, self._source)
        self.replica_manager = ReplicaManager(
            context.broker_id, broker_epoch, log, table, context.cache, self.fetcher_manager,
            config.replica_lag_time_max_ms, context.pause_point,
        )  # fmt: skip
        self._writes = FollowerWrites(log, name, self.replica_manager.publish)
        self._maintenance = LogMaintenance(
            name, log, self.replica_manager.led, context.cache, config, context.pause_point
        )
        self._has_applied = False
        self._untold_version: int | None = None
        self._kept_at = time.monotonic()

    def start(self) -> None:
        """Starts the maintenance thread."""
        self._maintenance.start()

    def _source(self, broker_id: int) -> SourceBroker | None:
        registration = self._context.cache.brokers().get(broker_id)
        return SourceBroker(registration.root, registration.broker_epoch) if registration else None

    def _create_fetcher(self, key: BrokerIdAndFetcherId, root: str) -> ReplicaFetcher:
        context, states = self._context, SharedFetchStates()
        source = context.cluster.storage_of(key.broker_id, root)
        fetch = FetchContext(
            context.spark, context.config, context.broker_id, self._log, key.broker_id, source,
            lambda: context.cache.replica_table(key.broker_id), self.replica_manager.follow_high_watermarks,
            self._divergences.update, self._writes, context.pause_point,
            FetcherQuotas(self.quotas, key.broker_id), lambda: context.cache.partitions,
        )  # fmt: skip
        return ReplicaFetcher(
            context.spark, context.broker_id, key, source, self._checkpoints(), context.config, states,
            FetchRunner(fetch, states), context.pause_point,
        )  # fmt: skip

    def _checkpoints(self) -> StorageRoot:
        """The folder for checkpoints. They are disposable, so a remote root gets a local folder, which is faster."""
        context = self._context
        if context.root.is_local:
            return context.root.child("checkpoints")
        folder = f"lakelog-{context.cluster.cluster_id}", str(context.broker_id)
        return StorageRoot.of(tempfile.gettempdir()).child(*folder)

    @property
    def log_identity(self) -> LogIdentity:
        """The identity of the broker's log as last read. It is read once a heartbeat interval."""
        return self._log_identity

    def lose_log(self) -> None:
        """Notes what the log had when it was last replayed: it is not there any more. The next registration tells from
        that what was lost."""
        self._log_identity = self._log.identity

    def figures(self) -> dict[str, int | None]:
        """Figures for the heartbeat, by column of `brokers`: quotas and rates in bytes/s, and `divergences`: how often
        a log's history has differed from its leader's since the broker registered."""
        return {**self.quotas.figures(), "divergences": self._divergences.total()}

    def _identify_log(self) -> None:
        """Never runs on the heartbeat's thread, because a heartbeat must not wait for the broker's root. An identity
        whose commit has just gone would fit any other log of that length."""
        if self._log.current().version != self._log_identity.version:
            found = identify(self._log)
            self._log_identity = found if found.commit else self._log_identity

    def tick(self) -> None:
        """Runs one round: takes up roles if the metadata has moved, then does the duties of a leader.

        Raises StaleBrokerEpochException once a newer process has registered or claimed the log,
        InconsistentBrokerRootException if its root lacks what it has seen there, KafkaStorageException if a table
        cannot be read or written, and BrokerKilled.
        """
        if self._context.cache.poll() or not self._has_applied or self.replica_manager.is_due():
            self._apply()
        if self.replica_manager.lead():
            self.replica_manager.publish("high watermark")
        self._tell_applied()
        self.quotas.look_at_followers(self.replica_manager.leads, self._log.current())
        if (time.monotonic() - self._kept_at) * 1000 >= self._context.config.broker_heartbeat_interval_ms:
            self._keep_up()

    def _apply(self) -> None:
        self._has_applied = False  # stays so after an error half way: the next tick applies again
        version = self._context.cache.version
        self._context.cluster.note_what_was_seen(self._context.root)
        self.replica_manager.apply()
        self._has_applied, self._untold_version = True, version

    def _tell_applied(self) -> None:
        """Reports the applied metadata version, which the controller waits for. If that fails, a later tick retries."""
        if self._untold_version is not None:
            self._context.pause_point.pass_through()
            self._context.registry.update(
                self.broker_epoch, "metadata applied", metadata_version=self._untold_version,
                offline_partitions=self.replica_manager.offline(),
            )  # fmt: skip
            self._untold_version = None

    def _keep_up(self) -> None:
        """Once a heartbeat interval: publishes rows with the new appends of producers, and maintains the tables."""
        self._context.pause_point.pass_through()
        self._kept_at = time.monotonic()
        self._log.refresh(LONGEST_SECONDS)  # otherwise a broker that leads nothing would not notice an unreadable log
        self._identify_log()
        self.replica_manager.publish("kept up")
        for table in (self._log, self._table, self._context.registry):
            table.maintain()

    def leads_for_others(self) -> bool:
        """Whether the broker leads a partition that another member of the ISR could lead. [CS-08]"""
        return any(set(r.isr) - {self._context.broker_id} for r in self.replica_manager.leads())

    def close(self) -> None:
        """Ends fetching and maintenance, so that nothing more is written under this epoch. Logs errors. [OL-02]"""
        for end in (self._maintenance.stop, self.fetcher_manager.close_all_fetchers):
            try:
                end()
            except Exception:  # Spark's errors too: the broker must go on
                logger.exception("broker %d: error while its session ended", self._context.broker_id)

    def stop(self) -> None:
        """Takes up its last roles, ends fetching and publishes its rows a last time. Logs errors. [BR-04]"""
        self._maintenance.stop()
        try:
            self.replica_manager.shutting_down()
            if self._context.cache.refresh():
                self._apply()  # closes the partitions that it no longer leads to producers, before the broker is gone
                self._tell_applied()
            self.fetcher_manager.close_all_fetchers()
            self.replica_manager.publish("shutdown")
            self._identify_log()
        except LakelogException as error:
            logger.warning("broker %d has not stopped in order: %s", self._context.broker_id, error)
            self.close()
