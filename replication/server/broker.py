"""A broker: registers, runs a session, sends heartbeats and reports a failed root. Kafka: `KafkaServer`. [BR-01]"""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.config import Config
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import (
    CorruptRecordException,
    InconsistentBrokerRootException,
    KafkaStorageException,
    LakelogException,
    StaleBrokerEpochException,
)
from lakelog.replication.server.broker_session import BrokerContext, BrokerSession
from lakelog.replication.server.fetcher.follower_query import follower_session
from lakelog.replication.server.id_watch import IdWatch, check_cluster_root
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.pause_point import BrokerKilled, PausePoint
from lakelog.replication.server.periodic_task import PeriodicTask, WhileMoving
from lakelog.replication.server.registration import Registration, epoch_seen
from lakelog.replication.server.replica_fetcher_manager import ReplicaFetcherManager
from lakelog.replication.server.spark_end import pass_while_spark_runs
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_listeners import CommitWaiter
from lakelog.replication.storage.delta.root_probe import RootWatch, probe_root, recover_root, storage_error
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)

_SESSIONS_WITHOUT_A_STEP = 2  # heartbeats stop after so many session time-outs without a step of the broker's thread


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
        self._failure: LakelogException | None = None
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
        error = self._first_look()
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

    def _first_look(self) -> LakelogException | None:
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
            log, table = ReplicaLog.open(self._root.child(LOG.name)), ReplicaTable.open(self._root)
        self._cluster.metadata.refresh()
        seen = epoch_seen(self.broker_id, log, self._cluster.metadata.partitions.values())
        epoch = self._registration.register(log, seen)
        with self._registration.noting_storage_errors():
            for claimed in (log, table):
                claimed.claim(epoch)
            session = BrokerSession(self._context, epoch, log, table)
            session.start()
        self.session = session
        logger.info("broker %d is registered under epoch %d", self.broker_id, epoch)

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
            except StaleBrokerEpochException as error:
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

    def is_running(self) -> bool:
        """Whether the broker's thread runs, also while it waits for its root."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the broker has stopped. Raises StaleBrokerEpochException if a newer process has fenced it."""
        while self._thread.is_alive():
            self._thread.join(1)
        if self._failure:
            raise self._failure

    def kill(self) -> None:
        """Ends the broker at once, as SIGKILL ends a process. It writes nothing more and tells nobody."""
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
        patience = config.controlled_shutdown_max_retries * config.controlled_shutdown_retry_backoff_ms / 1000
        deadline = time.monotonic() + patience
        while self.is_running() and session is self.session and session.leads_for_others():
            if time.monotonic() >= deadline:
                return
            self._waiter.stopping.wait(config.lakelog_poll_interval_ms / 1000)

    def stop(self, controlled: bool = True) -> None:
        """Ends its fetchers and publishes its rows a last time. With `controlled` and `controlled.shutdown.enable`, it
        first waits until a controller has moved its leaderships. Pass False if no controller is running. [BR-04]"""
        if self.pause_point.is_killed:  # its Spark has ended: it must write nothing more
            self.kill()
            return
        logger.info("broker %d is stopping", self.broker_id)
        self._is_leaving = True
        controlled, session = controlled and self._config.controlled_shutdown_enable, self.session
        if controlled and session and self.is_running() and self._failure is None:
            self._shut_down_in_order(session)
        self._waiter.stop()
        self._thread.join()
        self._heartbeat.stop()
        if self.session:
            (self.session.close if self._failure else self.session.stop)()
        if self._failure is None:
            self._registration.shutting_down(self.session.log_identity if self.session else None)
        logger.info("broker %d has stopped", self.broker_id)
