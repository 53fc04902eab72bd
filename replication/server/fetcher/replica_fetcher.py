"""A follower's query and its rounds. Spark plans what is behind. Then the micro-batch stays open, and runs rounds of
`FetchRunner`. A thread beside the query looks for new segments of the leader and tells the open micro-batch. It runs
the rounds that need no new segments, and all of them while no micro-batch is open: before the first one, between two,
and while Spark plans.

Kafka: `AbstractFetcherThread`, `ReplicaFetcherThread`. The replica's own log end offset is the truth, and the streaming
checkpoint is not: every start deletes it. [FT-01, FM-06]
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException, StaleBrokerEpochException
from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.fetch_states import FetchStates
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.steps import InitialFetchState
from lakelog.replication.server.executors import error_line
from lakelog.replication.server.fetcher.fetch_runner import FetchRunner
from lakelog.replication.server.fetcher.fetch_states import backoff_ms
from lakelog.replication.server.fetcher.follower_query import FollowerQuery, StreamPlan
from lakelog.replication.server.fetcher.leader_watch import LeaderLogWatch
from lakelog.replication.server.pause_point import BrokerKilled, PausePoint
from lakelog.replication.server.periodic_task import PeriodicTask
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId
from lakelog.replication.server.spark_end import kill_if_stopped
from lakelog.replication.storage.delta.commit_listeners import CommitListener
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)

_CANCEL_SECONDS = 0.1
_QUERY_LOOK_SECONDS = 1.0  # a look at the query is a call of the JVM, and costs more than one at a table


def fetcher_name(key: BrokerIdAndFetcherId) -> str:
    """`ReplicaFetcherThread-<fetcher id>-<source broker>`, as in Kafka. [FM-06]"""
    return f"ReplicaFetcherThread-{key.fetcher_id}-{key.broker_id}"


class ReplicaFetcher:
    """One streaming query, from one source broker, for the partitions of one fetcher id."""

    def __init__(
        self, spark: SparkSession, broker_id: int, key: BrokerIdAndFetcherId, source: StorageRoot,
        checkpoints: StorageRoot, config: Config, states: FetchStates, work: FetchRunner, pause_point: PausePoint,
    ) -> None:  # fmt: skip
        self.name = f"broker-{broker_id}:{fetcher_name(key)}"
        self._spark, self._broker_id, self._pause_point = spark, broker_id, pause_point
        self._config, self._states = config, states
        self._round = work
        self._watch, self._is_told = LeaderLogWatch(source.child(LOG.name), key.broker_id), False
        folder = checkpoints.child(fetcher_name(key))
        self._follower_query = FollowerQuery(spark, self.name, folder, self._process)
        self._round_lock, self._came_in_vain = threading.RLock(), False
        self._is_asked = threading.Event()
        self._ending: threading.Thread | None = None
        self._query: StreamingQuery | None = None
        self._failures, self._restart_at = 0, 0.0  # the query's failures in a row; when it may start again
        self._query_looked_at = float("-inf")
        self._begun = threading.Event()  # the query has run its first micro-batch
        self._thread = PeriodicTask(
            f"broker-{broker_id}", fetcher_name(key), config.lakelog_poll_interval_ms, pause_point, self.keep_running,
            is_poll=True,
        )  # fmt: skip
        self._listener = CommitListener(self._thread.wake).listen(source.child(LOG.name).uri, "append")

    def start(self) -> None:
        """Starts on a thread of its own: a query takes seconds to start, and the broker must lead meanwhile."""
        self._thread.start()

    def add_partitions(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> None:
        """Adds partitions to fetch. A partition that it has under the same leader epoch stays as it is. [FS-02]"""
        if self._states.assign(partitions):
            self._ask()

    def remove_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Stops fetching partitions, after a running append to them. It does not wait for a hanging source. [FM-07]"""
        self._states.remove(partitions)

    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self._states)

    def fetch_states(self) -> Mapping[TopicIdPartition, PartitionFetchState]:
        """The fetch states of its partitions."""
        return self._states.all()

    def _ask(self) -> None:
        """Asks for a round: the fetcher's thread runs it at once."""
        self._is_asked.set()
        self._thread.wake()

    def _process(self, headers: DataFrame, _: int) -> None:
        """Runs a micro-batch. Spark plans what is behind, and the thread's rounds go on meanwhile. Then the micro-batch
        stays open, as a fetch session does: its rounds append what is behind, and what the leader gains.

        A failed fetch delays its partitions [FT-06]. An unexpected error ends the query, and `keep_running`
        starts it again."""
        query = self._follower_query
        is_behind = bool(query.behind)
        plan = self._planned(headers, is_behind) if is_behind or query.appended else None
        if query.open.is_over:
            return

        def is_enough() -> bool:  # without a plan the next micro-batch would have none either
            return (plan is not None or not is_behind) and self._round.is_far_behind()

        again = query.open.run(lambda: self._first_fetch(plan), lambda: self._fetch(is_streamed=True), is_enough)
        if not query.open.is_over:
            with self._held():
                appended, behind = self._round.stream_rows()
            query.go_on(appended, behind)
            again = again or bool(behind)  # it waits for no plan
        if again:
            self._ask()

    def _planned(self, headers: DataFrame, is_behind: bool) -> StreamPlan | None:
        """Spark's plan of a micro-batch; None without one. The rounds need none, so its errors end no query."""
        try:
            return self._round.plan(headers, is_behind)
        except Exception as error:  # Spark's, also if somebody has cancelled its job, and a lack of executors
            if not self._follower_query.open.is_over:
                logger.warning("%s: goes on without Spark's plan: %s", self.name, error_line(error))
            return None

    def _first_fetch(self, plan: StreamPlan | None) -> bool:
        with self._held():  # a round under way would undo the marks that are set here
            self._round.begin_micro_batch(plan)
            self._begun.set()
            again = self._fetch(is_streamed=True)
            self._failures = 0
            return again

    def _fetch(self, is_streamed: bool = False) -> bool:
        """Runs a round. Returns whether more can be fetched at once."""
        with self._held():
            self._is_asked.clear()  # this round does what was asked for until now
            try:
                return self._round.run(is_streamed)
            except BrokerKilled:
                return False

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Holds the lock of the rounds. The thread does not wait for it: if it has come meanwhile, it is woken."""
        try:
            with self._round_lock:
                yield
        finally:
            if self._came_in_vain:
                self._thread.wake()

    def keep_running(self) -> None:
        """Starts the query, also again a backoff after it has failed, and runs the rounds that need no new segments. A
        query takes seconds to begin, and the follower would leave the ISR meanwhile: until then the rounds fetch new
        segments, too."""
        if self._query is None or self._has_ended(self._query):
            self._restart(self._query)
        self._look_at_leader()
        self._came_in_vain = True
        if self._round_lock.acquire(blocking=False):  # else a micro-batch has it, and wakes this thread
            self._came_in_vain = False
            try:
                self._fetch_if_due()
            finally:
                self._round_lock.release()

    def _has_ended(self, query: StreamingQuery) -> bool:
        if time.monotonic() < self._query_looked_at + _QUERY_LOOK_SECONDS:
            return False
        self._query_looked_at = time.monotonic()
        self._end_with_spark()  # its queries stay active
        return not query.isActive

    def _look_at_leader(self) -> None:
        """Tells the open micro-batch of the leader's new segments. If none is open, because the query has not begun,
        Spark plans, or the next one is about to begin, a round of this thread fetches them."""
        self._is_told = self._watch.has_news() or self._is_told
        if self._is_told and self._begun.is_set() and self._query is not None:
            self._round.begins_soon()
            self._is_told = not self._follower_query.open.tell()

    def _fetch_if_due(self) -> None:
        """Runs a round if one is due, or for segments of which no micro-batch tells. As in a micro-batch, an unexpected
        error delays all partitions. [FT-06]"""
        try:
            is_told = self._was_told()
            if (is_told or self._is_due()) and self._fetch(is_streamed=is_told):
                self._ask()
        except StaleBrokerEpochException:
            raise
        except Exception as error:
            logger.exception("%s: unexpected error", self.name)
            self._round.delay_all(f"{type(error).__name__}: {error_line(error)}")

    def _was_told(self) -> bool:
        """Takes the news of the leader's log, if there are any and the rounds can follow it."""
        with suppress(KafkaStorageException):  # the fetch itself tells why; the news stay
            if self._is_told:
                self._round.follow()
                self._is_told = False
                return True
        return False

    def _is_due(self) -> bool:
        """Whether a round was asked for, a delay is over, or the leader's rows have news."""
        return self._is_asked.is_set() or self._states.has_due() or self._round.has_news()

    def _restart(self, query: StreamingQuery | None) -> None:
        if query is not None:
            self._query = None
            self._begun.clear()
            self._round.stop_following()  # a commit may have ended the query, and the snapshot is read without it
            self._is_told = True
            self._has_failed(f"its query has ended: {error_line(query.exception() or 'it was stopped')}")
        elif time.monotonic() >= self._restart_at:
            try:
                self._query = self._follower_query.start()
            except Exception as error:  # from Spark or from the checkpoint's folder
                self._end_with_spark()
                self._has_failed(f"its query does not start: {error_line(error)}")

    def _end_with_spark(self) -> None:
        kill_if_stopped(self._spark, self._broker_id, self._pause_point)

    def _has_failed(self, why: str) -> None:
        """Logs the failure, delays all partitions, and puts off the next start: longer after each failure in a row."""
        self._failures += 1
        wait = backoff_ms(self._config.replica_fetch_backoff_ms, self._failures, random.random()) / 1000
        self._restart_at = time.monotonic() + wait
        logger.error("%s: %s; the next start is in %.1f s", self.name, why, wait)
        with self._round_lock:
            self._round.delay_all(why)

    def shutdown(self, seconds: float | None = None) -> None:
        """Ends the query after the running micro-batch. [BR-04]

        It removes all partitions first, so that nothing more is appended. Then it waits for the end at most `seconds`,
        by default `lakelog.storage.timeout.ms`: a source that hangs forever must not hang its followers.
        """
        self._states.remove(self._states.all())
        if self._ending is None:
            self._ending = threading.Thread(target=self._end, name=f"{self.name}-shutdown", daemon=True)
            self._ending.start()
        self._ending.join(self._config.lakelog_storage_timeout_ms / 1000 if seconds is None else seconds)
        if self._ending.is_alive():
            logger.warning("%s: does not wait any longer for the end of its micro-batch", self.name)

    def _end(self) -> None:
        try:
            self._follower_query.open.end()
            self._thread.stop()
            if self._query is not None:
                self._stop(self._query)
        except Exception:  # Spark's errors too: no caller would receive them
            logger.exception("%s: error while its query was stopped", self.name)

    def _stop(self, query: StreamingQuery) -> None:
        """Stops a query. Spark cancels its jobs once and then waits, but a plan may begin its job only after that."""
        errors: list[Exception] = []

        def stop() -> None:
            try:
                query.stop()
            except Exception as error:  # Spark's
                errors.append(error)

        stopping = threading.Thread(target=stop, name=f"{self.name}-stop", daemon=True)
        stopping.start()
        stopping.join(_CANCEL_SECONDS)
        while stopping.is_alive():
            self._spark.sparkContext.cancelJobGroup(str(query.runId))
            stopping.join(_CANCEL_SECONDS)
        if errors:
            raise errors[0]
