"""A broker: registers, runs a session under each broker epoch, sends heartbeats and reports a failed root. Kafka:
`KafkaServer`. [BR-01]"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.config import Config
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import (
    CorruptRecordException,
    FencedClusterRootException,
    InconsistentBrokerRootException,
    KafkaStorageException,
    LakelogException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol.broker_registration import LogIdentity
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.fetcher.fetch_runner import FetchContext, FetchRunner
from lakelog.replication.server.fetcher.follower_query import follower_session
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.server.fetcher.shared_fetch_states import SharedFetchStates
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.server.log_maintenance import LogMaintenance
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint, PeriodicTask, WhileMoving
from lakelog.replication.server.registration import IdWatch, Registration, check_cluster_root, epoch_seen
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId, ReplicaFetcherManager, SourceBroker
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.server.replication_quotas import ReplicationQuotas
from lakelog.replication.server.spark_check import pass_while_spark_runs
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_listeners import CommitWaiter
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_identity import identify
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_probe import RootWatch, probe_root, recover_root, storage_error
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)

_SESSIONS_WITHOUT_A_STEP = 2  # session time-outs without a step of the broker's thread until heartbeats stop


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
        self.maintenance = LogMaintenance(
            name, log, self.replica_manager, context.cache, config, context.pause_point, context.spark
        )
        self._has_applied = False
        self._unreported_version: int | None = None
        self._kept_at = time.monotonic()

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
            self.quotas, lambda: context.cache.partitions,
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
        """Notes the identity of the log as last replayed, because the log is gone. The next registration compares
        it."""
        self._log_identity = self._log.identity

    def figures(self) -> dict[str, int | None]:
        """Figures for the heartbeat, by column of `brokers`: quotas and rates in bytes/s, and `divergences`: how often
        a log's history has differed from its leader's since the broker registered."""
        return {**self.quotas.figures(), "divergences": self._divergences.total()}

    def _identify_log(self) -> None:
        """Never runs on the heartbeat's thread, because a heartbeat must not wait for the broker's root. An identity
        whose commit was just deleted would fit any other log of that length."""
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
        self._report_applied()
        self.quotas.poll_followers(self.replica_manager.leads, self._log.current())
        if (time.monotonic() - self._kept_at) * 1000 >= self._context.config.broker_heartbeat_interval_ms:
            self._keep_up()

    def _apply(self) -> None:
        self._has_applied = False  # stays so after an error half way: the next tick applies again
        version = self._context.cache.version
        self._context.cluster.note_what_was_seen(self._context.root)
        self.replica_manager.apply()
        self._has_applied, self._unreported_version = True, version

    def _report_applied(self) -> None:
        """Reports the applied metadata version, which the controller waits for. If that fails, a later tick retries."""
        if self._unreported_version is not None:
            self._context.pause_point.pass_through()
            self._context.registry.heartbeat(
                self.broker_epoch, "metadata applied", metadata_version=self._unreported_version,
                offline_partitions=self.replica_manager.offline.names(),
            )  # fmt: skip
            self._unreported_version = None

    def check_not_fenced(self) -> None:
        """Looks at the log, also while the cluster root is away: that may have been recovered elsewhere. Raises
        StaleBrokerEpochException if so, or if a newer process has claimed the log; other errors are for the probe."""
        with suppress(KafkaStorageException, CorruptRecordException):
            self._log.refresh()

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
        for end in (self.maintenance.stop, self.fetcher_manager.close_all_fetchers):
            try:
                end()
            except Exception:  # Spark's errors too: the broker must go on
                logger.exception("broker %d: error while its session ended", self._context.broker_id)

    def stop(self) -> None:
        """Takes up its last roles, ends fetching and publishes its rows a last time. Logs errors. [BR-04]"""
        self.maintenance.stop()
        try:
            self.replica_manager.shutting_down()
            if self._context.cache.refresh():
                self._apply()  # closes the partitions that it no longer leads to producers, before the broker ends
                self._report_applied()
            self.fetcher_manager.close_all_fetchers()
            self.replica_manager.publish("shutdown")
            self._identify_log()
        except LakelogException as error:
            logger.warning("broker %d has not stopped in order: %s", self._context.broker_id, error)
            self.close()


class Broker:
    """One broker of a cluster. `start` returns once it is registered and running; `stop` shuts it down in order.

    `session` is its work under one broker epoch. It is None while the root fails: then the broker leads and follows
    nothing, its row gives the reason, and it probes the root until the root works again. [OL-02]

    `watch` is a watch of the broker's id that has already begun. Without one the broker begins its own.
    """

    def __init__(
        self, spark: SparkSession, cluster_uri: str, root_uri: str, config: Config, watch: IdWatch | None = None
    ) -> None:
        self.broker_id = config.broker_id
        self._cluster = Cluster.open(cluster_uri, config)
        self._config = self._cluster.config
        self._root = self._cluster.storage_of(self.broker_id, root_uri)
        self._root_watch = RootWatch(self._root)
        self._watch = watch or IdWatch(self._cluster, self.broker_id, root_uri)
        self._spark = follower_session(spark)
        self.pause_point = PausePoint()
        self.session: BrokerSession | None = None
        self._waiter = CommitWaiter().listen(self._root.child(LOG.name).uri, "append")
        self._thread = threading.Thread(target=self._run, name=f"broker-{self.broker_id}", daemon=True)
        interval, poll = self._config.broker_heartbeat_interval_ms, self._config.lakelog_poll_interval_ms
        longest = (_SESSIONS_WITHOUT_A_STEP * self._config.broker_session_timeout_ms + poll) / 1000
        beat = WhileMoving(f"broker-{self.broker_id}", self.pause_point, longest, self._beat)
        self._heartbeat = PeriodicTask(f"broker-{self.broker_id}", "heartbeat", interval, self.pause_point, beat)
        self._failure: StaleBrokerEpochException | FencedClusterRootException | None = None
        self._is_doubtful, self._is_leaving, self._probed_at = False, False, time.monotonic()

    def start(self) -> None:
        """Registers and starts the broker's threads. A broker that has registered before also starts if its root fails.

        Raises DuplicateBrokerRegistrationException if another process with this id is running,
        InconsistentClusterIdException if the root belongs to another cluster or broker,
        InconsistentClusterRootException if an earlier process of the broker has seen another cluster root or a later
        state of it, and KafkaStorageException or
        CorruptRecordException if the root does not work at the broker's first start.
        """
        check_cluster_root(self._cluster, self._root)
        self._watch.wait(self._waiter.stopping)
        error = self._first_probe()
        self._registration = Registration(
            BrokerTable.open_or_create(self._cluster.root, self.broker_id), self._root, self._config
        )
        self._context = BrokerContext(
            self.broker_id, self._spark, self._cluster, self._config, self._root, self._registration.table,
            MetadataCache(self._cluster, listener=self._waiter), self.pause_point,
        )  # fmt: skip
        if error is None:
            self._begin()
        else:
            self._registration.register_without_storage(f"{error.name}: {error}")
            logger.error("broker %d starts without its storage: %s", self.broker_id, error)
        self.pause_point.watch(self._thread)
        self._heartbeat.start()
        self._thread.start()

    def _first_probe(self) -> LakelogException | None:
        """Probes the root; None if it works. Returns its error if the broker has registered before, else raises it."""
        try:
            recover_root(self._root, self._cluster.cluster_id, self.broker_id)
            probe_root(self._root, self._cluster.cluster_id, self.broker_id)
        except (KafkaStorageException, CorruptRecordException) as error:
            if self.broker_id not in self._cluster.refresh_brokers():
                raise
            return error
        return None

    def _begin(self) -> None:
        """Starts a session under a new broker epoch. The controller sees a failure and a start-up. KIP-380. [OL-02]"""
        self._cluster.expect_what_was_seen(self._root)
        with self._registration.noting_storage_errors():
            log = ReplicaLog.open(self._root.child(LOG.name), self._cluster.generation)
            table = ReplicaTable.open(self._root)
        self._cluster.metadata.refresh()
        seen = epoch_seen(self.broker_id, log, self._cluster.metadata.partitions.values())
        epoch = self._registration.register(log, seen, self._cluster.generation)
        with self._registration.noting_storage_errors():
            log.claim(epoch, self._registration.log_epoch)
            table.claim(epoch)
            session = BrokerSession(self._context, epoch, log, table)
            session.maintenance.start()
        self.session = session
        logger.info("broker %d is registered under epoch %d", self.broker_id, epoch, extra={"epoch": epoch})

    def _run(self) -> None:
        """The broker's own thread. It logs errors and goes on, but stops at once if the broker is fenced. [EV-01]"""
        errors = ErrorLog(logger, f"broker {self.broker_id}")
        while self._waiter.wait(self._config.lakelog_poll_interval_ms):
            try:
                pass_while_spark_runs(self._spark, self.broker_id, self.pause_point)
                self._round()
                errors.worked()
            except BrokerKilled:
                return
            except (StaleBrokerEpochException, FencedClusterRootException) as error:
                logger.error("broker %d stops: %s", self.broker_id, error)
                self._failure = error
                if self.session:
                    self.session.fetcher_manager.close_all_fetchers()
                return
            except (LakelogException, OSError) as error:
                self._is_doubtful = True
                errors.failed(error)
            except Exception:  # for example a Spark worker that did not start: the next round tries again
                self._is_doubtful = True
                logger.exception("broker %d: unexpected error", self.broker_id)

    def _round(self) -> None:
        if self._is_doubtful and self.session:
            self.session.check_not_fenced()
        if self._is_due_for_probe():
            self._probe()
        if self.session:
            try:
                self.session.tick()
            except InconsistentBrokerRootException as error:
                self.session.lose_log()
                self._do_without_storage(f"{error.name}: {error}")

    def _is_due_for_probe(self) -> bool:
        """Once a heartbeat interval; after an error already a fetch backoff later, as the root may be its cause."""
        config, since = self._config, (time.monotonic() - self._probed_at) * 1000
        is_in_doubt = self._is_doubtful or self.session is None
        return since >= (config.replica_fetch_backoff_ms if is_in_doubt else config.broker_heartbeat_interval_ms)

    def _probe(self) -> None:
        """Reads and writes the root: neither an error nor a slow store proves that the root has failed. [OL-02]"""
        is_in_doubt = self._is_doubtful or self.session is None
        self._probed_at, self._is_doubtful = time.monotonic(), False
        self._registration.check_not_fenced()
        if not is_in_doubt and self._root_watch.works_as_before():
            return
        error = storage_error(self._root, self._cluster.cluster_id, self.broker_id)
        if error is not None:
            self._do_without_storage(error)
        elif self.session is None and not self._is_leaving:
            self._begin()

    def _do_without_storage(self, error: str) -> None:
        """Ends the session. Writes the error to the broker's row first, so that other brokers are elected sooner.

        Kafka: `ReplicaManager.handleLogDirFailure`. [OL-02, LI-04]
        """
        session, self.session = self.session, None
        if session or error != self._registration.storage_error:
            logger.error("broker %d: its storage does not work: %s", self.broker_id, error)
        self._registration.storage_error = error
        try:
            self._registration.beat(session.log_identity if session else None)
        finally:
            if session:
                session.close()

    def _beat(self) -> None:
        session = self.session
        figures = session.figures() if session else {}
        self._registration.beat(session.log_identity if session else None, **figures)

    @property
    def fetcher_manager(self) -> ReplicaFetcherManager:
        """The broker's fetchers. Raises KafkaStorageException while its root does not work."""
        if self.session is None:
            raise KafkaStorageException(f"broker {self.broker_id}: {self._registration.storage_error}")
        return self.session.fetcher_manager

    def queries(self) -> list[StreamingQuery]:
        """The streaming queries that are running, one for each source broker and fetcher id."""
        return list(self._spark.streams.active)

    @property
    def is_running(self) -> bool:
        """Whether the broker's thread runs, also while it waits for its root."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the broker has stopped. Raises StaleBrokerEpochException if a newer process has fenced it, and
        FencedClusterRootException if the cluster root was recovered elsewhere."""
        while self._thread.is_alive():
            self._thread.join(1)
        if self._failure:
            raise self._failure

    def kill(self) -> None:
        """Ends the broker at once, as SIGKILL ends a process. It writes nothing more."""
        self.pause_point.kill()
        self._waiter.stop()
        self._heartbeat.stop()
        self._thread.join()
        if self.session:
            self.session.close()

    def _shut_down_in_order(self, session: BrokerSession) -> None:
        """Marks its row as shutting down, and waits until it leads nothing that other ISR members could lead. Meanwhile
        it takes up roles but starts no new fetching. It gives up after `controlled.shutdown.max.retries` backoffs,
        because there may be no controller. [BL-09, CS-01]"""
        self._registration.shutting_down(session.log_identity)
        session.replica_manager.shutting_down()
        config = self._config
        wait_seconds = config.controlled_shutdown_max_retries * config.controlled_shutdown_retry_backoff_ms / 1000
        deadline = time.monotonic() + wait_seconds
        while self.is_running and session is self.session and session.leads_for_others():
            if time.monotonic() >= deadline:
                return
            self._waiter.stopping.wait(config.lakelog_poll_interval_ms / 1000)

    def stop(self, controlled: bool = True) -> None:
        """Ends its fetchers and publishes its rows a last time. With `controlled` and `controlled.shutdown.enable`, it
        first waits until a controller has moved its leaderships. Pass False if no controller is running. Once its Spark
        has ended, also meanwhile, it writes nothing more: then it is killed. [BR-04]"""
        if not self.pause_point.is_killed:
            with suppress(BrokerKilled):
                self._stop(controlled)
        if self.pause_point.is_killed:
            self.kill()

    def _stop(self, controlled: bool) -> None:
        logger.info("broker %d is stopping", self.broker_id)
        self._is_leaving = True
        controlled, session = controlled and self._config.controlled_shutdown_enable, self.session
        if controlled and session and self.is_running and self._failure is None:
            self._shut_down_in_order(session)
        self._waiter.stop()
        self._thread.join()
        self._heartbeat.stop()
        if self.session:
            (self.session.close if self._failure else self.session.stop)()
        if self._failure is None:
            self._registration.shutting_down(self.session.log_identity if self.session else None)
        logger.info("broker %d has stopped", self.broker_id)
