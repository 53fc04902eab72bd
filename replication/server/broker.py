"""A broker: registers, works, shows that it lives, and says so when its storage fails. Kafka: `KafkaServer`. [BR-01]"""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    KafkaStorageException,
    LakelogException,
    StaleBrokerEpochException,
)
from lakelog.replication.server.broker_session import BrokerContext, BrokerSession
from lakelog.replication.server.fetcher.follower_session import follower_session
from lakelog.replication.server.id_watch import IdWatch
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.pause_point import BrokerKilled, PausePoint
from lakelog.replication.server.periodic_task import PeriodicTask, WhileMoving
from lakelog.replication.server.registration import Registration, epoch_seen
from lakelog.replication.server.replica_fetcher_manager import ReplicaFetcherManager
from lakelog.replication.server.spark_end import pass_while_spark_runs
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.root_probe import probe_root, storage_error, works_as_before
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)

_SESSIONS_WITHOUT_A_STEP = 2  # session time-outs without a step of its own thread after which a broker shows no life


class Broker:
    """One broker of a cluster. `start` returns once it is registered and at work; `stop` ends it in order.

    `session` is its work under one broker epoch. While its storage does not work it has none: it leads and follows
    nothing, its row says why, and it looks for its root until that works again. [OL-02]

    `watch`: of its id, begun before; a broker without one begins its own.
    """

    def __init__(
        self, spark: SparkSession, cluster_uri: str, root_uri: str, config: Config, watch: IdWatch | None = None
    ) -> None:
        self.broker_id = config.broker_id
        self._cluster = Cluster.open(cluster_uri, config)
        self._config = self._cluster.config
        self._root = self._cluster.storage_of(self.broker_id, root_uri)
        self._watch = watch or IdWatch(self._cluster, self.broker_id, root_uri)
        self._spark = follower_session(spark)
        self.pause_point = PausePoint()
        self.session: BrokerSession | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"broker-{self.broker_id}", daemon=True)
        interval, poll = self._config.broker_heartbeat_interval_ms, self._config.lakelog_poll_interval_ms
        longest = (_SESSIONS_WITHOUT_A_STEP * self._config.broker_session_timeout_ms + poll) / 1000
        beat = WhileMoving(f"broker-{self.broker_id}", self.pause_point, longest, self._beat)
        self._heartbeat = PeriodicTask(f"broker-{self.broker_id}", "heartbeat", interval, self.pause_point, beat)
        self._failure: LakelogException | None = None
        self._is_doubtful, self._probed_at = False, time.monotonic()
        self._is_leaving = False

    def start(self) -> None:
        """Registers and begins to work. A broker that has registered before starts without its storage, if need be.

        Raises InconsistentClusterIdException for a root of another cluster or broker, KafkaStorageException or
        CorruptRecordException for a root that does not work at its first start,
        DuplicateBrokerRegistrationException if another process of this id is at work.
        """
        self._watch.wait(self._stopping)
        error = self._first_look()
        self._registration = Registration(
            BrokerTable.open_or_create(self._cluster.root, self.broker_id), self._root, self._config
        )
        self._context = BrokerContext(
            self.broker_id, self._spark, self._cluster, self._config, self._root, self._registration.table,
            MetadataCache(self._cluster), self.pause_point,
        )  # fmt: skip
        if error is None:
            self._begin()
        else:
            self._registration.register_without_storage(f"{error.name}: {error}")
            logger.error("broker %d begins without its storage: %s", self.broker_id, error)
        self.pause_point.watch(self._thread)
        self._heartbeat.start()
        self._thread.start()

    def _first_look(self) -> LakelogException | None:
        """What keeps the storage of a broker that has registered before from working."""
        try:
            probe_root(self._root, self._cluster.cluster_id, self.broker_id)
        except (KafkaStorageException, CorruptRecordException) as error:
            if self.broker_id not in self._cluster.refresh_brokers():
                raise
            return error
        return None

    def _begin(self) -> None:
        """A session under a new broker epoch: for the controller a failure and a start-up. KIP-380. [OL-02]"""
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
        """The broker's own thread. An error is logged and the loop goes on; a fenced broker stops at once. [EV-01]"""
        while not self._stopping.wait(self._config.lakelog_poll_interval_ms / 1000):
            try:
                pass_while_spark_runs(self._spark, self.broker_id, self.pause_point)
                self._round()
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
                logger.warning("broker %d: %s", self.broker_id, error)
            except Exception:  # such as a worker of Spark that did not start: the next round tries again
                self._is_doubtful = True
                logger.exception("broker %d: an error of its own", self.broker_id)

    def _round(self) -> None:
        if self._is_due_for_probe():
            self._probe()
        if self.session:
            self.session.tick()

    def _is_due_for_probe(self) -> bool:
        """Now and then, and soon after an error: whatever has failed, it may have been for the root."""
        config, since = self._config, (time.monotonic() - self._probed_at) * 1000
        is_in_doubt = self._is_doubtful or self.session is None
        return since >= (config.replica_fetch_backoff_ms if is_in_doubt else config.broker_heartbeat_interval_ms)

    def _probe(self) -> None:
        """An error alone is no proof, and neither is a slow store: the root is read and written. [OL-02]"""
        is_in_doubt = self._is_doubtful or self.session is None
        self._probed_at, self._is_doubtful = time.monotonic(), False
        self._registration.check_not_fenced()
        if not is_in_doubt and works_as_before(self._root):
            return
        error = storage_error(self._root, self._cluster.cluster_id, self.broker_id)
        if error is not None:
            self._do_without_storage(error)
        elif self.session is None and not self._is_leaving:
            self._begin()

    def _do_without_storage(self, error: str) -> None:
        """Leads and follows nothing from now on. The row says so first: others lead the sooner.

        Kafka: `ReplicaManager.handleLogDirFailure`. [OL-02, LI-04]
        """
        session, self.session = self.session, None
        if session or error != self._registration.storage_error:
            logger.error("broker %d: its storage does not work: %s", self.broker_id, error)
        self._registration.storage_error = error
        try:
            self._beat()
        finally:
            if session:
                session.close()

    def _beat(self) -> None:
        session = self.session
        figures = session.figures() if session else {}
        self._registration.beat(session.log_identity if session else None, **figures)

    @property
    def fetcher_manager(self) -> ReplicaFetcherManager:
        """The fetchers of the broker. Raises KafkaStorageException while its storage does not work."""
        if self.session is None:
            raise KafkaStorageException(f"broker {self.broker_id}: {self._registration.storage_error}")
        return self.session.fetcher_manager

    def queries(self) -> list[StreamingQuery]:
        """The streaming queries that run now, one for each source broker and fetcher id."""
        return list(self._spark.streams.active)

    def is_running(self) -> bool:
        """Whether the broker is at work, or waits for its storage."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Returns when the broker has stopped. Raises what it was stopped by, if not by `stop`."""
        while self._thread.is_alive():
            self._thread.join(1)
        if self._failure:
            raise self._failure

    def kill(self) -> None:
        """Ends it at once, as SIGKILL ends a process: no more is written, nobody is told."""
        self.pause_point.kill()
        self._stopping.set()
        self._heartbeat.stop()
        self._thread.join()
        if self.session:
            self.session.close()

    def _shut_down_in_order(self, session: BrokerSession) -> None:
        """Says that it is shutting down, and waits until others lead what they can. From then on it takes up roles but
        fetches nothing new. Without a controller that sees to it, it goes after some time all the same. [BL-09, CS-01]
        """
        self._registration.shutting_down(session.log_identity)
        session.replica_manager.shutting_down()
        config = self._config
        patience = config.controlled_shutdown_max_retries * config.controlled_shutdown_retry_backoff_ms / 1000
        deadline = time.monotonic() + patience
        while self.is_running() and session is self.session and session.leads_for_others():
            if time.monotonic() >= deadline:
                return
            self._stopping.wait(config.lakelog_poll_interval_ms / 1000)

    def stop(self, controlled: bool = True) -> None:
        """Gives away what it leads, ends its fetchers, publishes its state once more. `controlled`: it waits for a
        controller to move its leaderships; without one that would be in vain. [BR-04]"""
        if self.pause_point.is_killed:  # its Spark has ended: it writes nothing more
            self.kill()
            return
        logger.info("broker %d is stopping", self.broker_id)
        self._is_leaving = True
        controlled, session = controlled and self._config.controlled_shutdown_enable, self.session
        if controlled and session and self.is_running() and self._failure is None:
            self._shut_down_in_order(session)
        self._stopping.set()
        self._thread.join()
        self._heartbeat.stop()
        if self.session:
            (self.session.close if self._failure else self.session.stop)()
        if self._failure is None:
            self._registration.shutting_down(self.session.log_identity if self.session else None)
        logger.info("broker %d has stopped", self.broker_id)
