"""A broker: registers, takes up its roles, follows, leads, and shows that it lives. Kafka: `KafkaServer`. [BR-01]"""

from __future__ import annotations

import logging
import tempfile
import threading
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from replication.config import Config
from replication.errors import DuplicateBrokerRegistrationException, LakelogException, StaleBrokerEpochException
from replication.server.fetch_round import FetchContext, FetchRound
from replication.server.fetch_states import FetchStates
from replication.server.follower_session import follower_session
from replication.server.gate import BrokerKilled, Gate
from replication.server.heartbeat import Heartbeat
from replication.server.metadata_cache import MetadataCache
from replication.server.replica_fetcher import ReplicaFetcher
from replication.server.replica_fetcher_manager import BrokerIdAndFetcherId, ReplicaFetcherManager
from replication.server.replica_manager import ReplicaManager
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.cluster import Cluster, check_identity
from replication.storage.filesystem import StorageRoot
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable
from schemas import LOG

logger = logging.getLogger(__name__)


class Broker:
    """One broker of a cluster. `start` returns once it is registered and at work; `stop` ends it in order."""

    def __init__(self, spark: SparkSession, cluster_uri: str, root_uri: str, config: Config) -> None:
        self.broker_id = config.broker_id
        self._cluster = Cluster.open(cluster_uri, config)
        self._config = self._cluster.config
        self._root = self._cluster.storage_of(self.broker_id, root_uri)
        self._spark = follower_session(spark)
        self.gate = Gate()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"broker-{self.broker_id}", daemon=True)
        interval = self._config.broker_heartbeat_interval_ms
        self._heartbeat = Heartbeat(f"broker-{self.broker_id}", interval, self.gate, self._beat)
        self._failure: LakelogException | None = None
        self._has_applied = False

    def start(self) -> None:
        """Registers and begins to work.

        Raises InconsistentClusterIdException for a root of another cluster or broker, CorruptRecordException for a
        log that was changed by hand, DuplicateBrokerRegistrationException if the id is in use at another root.
        """
        check_identity(self._root, self._cluster.cluster_id, self.broker_id)
        log = ReplicaLog.open(self._root.child(LOG.name))
        self._registry = BrokerTable.open_or_create(self._cluster.root, self.broker_id)
        registration = self._register(log)
        log.claim(registration.broker_epoch)
        table = ReplicaTable.open(self._root)
        table.claim(registration.broker_epoch)
        self._cache = MetadataCache(self._cluster)
        self.fetcher_manager = ReplicaFetcherManager(
            self._config.num_replica_fetchers, self._create_fetcher, self._source_uri
        )
        self._log, self._table = log, table
        self.replica_manager = ReplicaManager(
            self.broker_id, registration.broker_epoch, log, table, self._cache, self.fetcher_manager,
            self._config.replica_lag_time_max_ms, self.gate,
        )  # fmt: skip
        self._epoch = registration.broker_epoch
        self._kept_at = time.monotonic()
        self._heartbeat.start()
        self._thread.start()
        logger.info("broker %d is registered under epoch %d", self.broker_id, self._epoch)

    def _register(self, log: ReplicaLog) -> BrokerRegistration:
        self._check_id_is_free()

        def build(last: BrokerRegistration | None) -> BrokerRegistration:
            version = log.current().version
            was_lost = last is not None and (last.log_table_id != log.table_id or last.log_version > version)
            return BrokerRegistration(
                self.broker_id, self._root.uri, self._config.broker_rack, last.broker_epoch + 1 if last else 1,
                0, -1, False, None, log.table_id, version, was_lost,
            )  # fmt: skip

        return self._registry.register(build)

    def _check_id_is_free(self) -> None:
        """An id that is registered at another root is free only if its heartbeat stands still."""
        last = self._registry.registration
        if last is None or last.root == self._root.uri or last.shutting_down:
            return
        deadline = time.monotonic() + self._config.broker_session_timeout_ms / 1000
        while time.monotonic() < deadline:
            self._stopping.wait(self._config.lakelog_poll_interval_ms / 1000)
            if self._registry.refresh():
                raise DuplicateBrokerRegistrationException(
                    f"broker {self.broker_id} is at work at {last.root}; stop it there first, or use another id"
                )

    def _source_uri(self, broker_id: int) -> str | None:
        registration = self._cache.brokers().get(broker_id)
        return registration.root if registration else None

    def _create_fetcher(self, key: BrokerIdAndFetcherId, source_uri: str) -> ReplicaFetcher:
        source = self._cluster.storage_of(key.broker_id, source_uri)
        states = FetchStates()
        name = f"broker-{self.broker_id}"
        context = FetchContext(
            self._spark, self._config, name, self._log, source,
            lambda: self._cache.replica_table(key.broker_id), self.replica_manager.update_follower_high_watermarks,
            self.replica_manager.lower_high_watermarks, self.replica_manager.publish, self.gate,
        )  # fmt: skip
        return ReplicaFetcher(
            self._spark, self.broker_id, key, source, self._cluster.root, self._checkpoints(), self._config, states,
            FetchRound(context, states),
        )  # fmt: skip

    def _checkpoints(self) -> StorageRoot:
        """Checkpoints are disposable: where the root is no local disk, one serves them better."""
        if self._root.is_local:
            return self._root.child("checkpoints")
        return StorageRoot.of(tempfile.gettempdir()).child(f"lakelog-{self._cluster.cluster_id}", str(self.broker_id))

    def _run(self) -> None:
        """The broker's own thread. An error is logged and the loop goes on; a fenced broker stops at once. [EV-01]"""
        while not self._stopping.wait(self._config.lakelog_poll_interval_ms / 1000):
            try:
                self.gate.pass_through()
                self._tick()
            except BrokerKilled:
                return
            except StaleBrokerEpochException as error:
                logger.error("broker %d stops: %s", self.broker_id, error)
                self._failure = error
                self.fetcher_manager.close_all_fetchers()
                return
            except (LakelogException, OSError) as error:
                logger.warning("broker %d: %s", self.broker_id, error)
            except Exception:  # such as a worker of Spark that did not start: the next round tries again
                logger.exception("broker %d: an error of its own", self.broker_id)

    def _tick(self) -> None:
        if self._cache.refresh() or not self._has_applied:
            self._apply()
        self.fetcher_manager.restart_failed_fetchers()
        if self.replica_manager.lead():
            self.replica_manager.publish("high watermark")
        if (time.monotonic() - self._kept_at) * 1000 >= self._config.broker_heartbeat_interval_ms:
            self._keep_up()

    def _apply(self) -> None:
        self._has_applied = False  # until it is done: an error half way must not leave it at that
        version = self._cache.version
        self.replica_manager.apply()
        self._has_applied = True
        self.gate.pass_through()
        self._registry.update(self._epoch, "metadata applied", metadata_version=version)

    def _beat(self) -> None:
        self._registry.update(self._epoch, "heartbeat", log_version=self._log.current().version)

    def _keep_up(self) -> None:
        """What is done now and then: the rows say what producers have appended, and tables stay cheap to open."""
        self.gate.pass_through()
        self._kept_at = time.monotonic()
        self.replica_manager.publish("kept up")
        for table in (self._log, self._table, self._registry):
            table.checkpoint_if_due()

    def queries(self) -> list[StreamingQuery]:
        """The streaming queries that run now, one for each source broker and fetcher id."""
        return list(self._spark.streams.active)

    def is_running(self) -> bool:
        """Whether the broker is at work."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the broker has stopped. Raises what it was stopped by, if not by `stop`."""
        while self._thread.is_alive():
            self._thread.join(1)
        if self._failure:
            raise self._failure

    def kill(self) -> None:
        """Ends it at once, as SIGKILL ends a process: no more is written, nobody is told."""
        self.gate.kill()
        self._stopping.set()
        self._heartbeat.stop()
        self._thread.join()
        self.fetcher_manager.close_all_fetchers()

    def _shut_down_in_order(self) -> None:
        """Says that it is shutting down, and waits until others lead what they can. From then on it takes up roles but
        fetches nothing new. Without a controller that sees to it, it goes after some time all the same. [BL-09, CS-01]
        """
        self._registry.update(self._epoch, "shutdown", shutting_down=True)
        self.replica_manager.shutting_down()
        config = self._config
        patience = config.controlled_shutdown_max_retries * config.controlled_shutdown_retry_backoff_ms / 1000
        deadline = time.monotonic() + patience
        while self.is_running() and self._leads_for_others() and time.monotonic() < deadline:
            self._stopping.wait(config.lakelog_poll_interval_ms / 1000)

    def _leads_for_others(self) -> bool:
        """Whether it leads a partition that another member of the ISR could lead. [CS-08]"""
        return any(set(r.isr) - {self.broker_id} for r in self.replica_manager.leads())

    def stop(self, controlled: bool = True) -> None:
        """Gives away what it leads, ends its fetchers, publishes its state once more. [BR-04]

        `controlled`: wait for a controller to move its leaderships; without one that would be in vain.
        """
        if controlled and self._config.controlled_shutdown_enable and self.is_running() and self._failure is None:
            self._shut_down_in_order()
        self._stopping.set()
        self._thread.join()
        self._heartbeat.stop()
        if self._failure:
            return
        self.replica_manager.shutting_down()
        if self._cache.refresh():
            self._apply()  # what it has been told to give away is closed to producers here before it is gone
        self.fetcher_manager.close_all_fetchers()
        self.replica_manager.publish("shutdown")
        self._registry.update(self._epoch, "shutdown", shutting_down=True)
