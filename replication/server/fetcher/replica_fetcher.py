"""A follower's query, and the loop of its rounds. Spark plans what is behind. Then the micro-batch stays open and runs
the loop. The fetcher's own thread runs the same loop while no micro-batch is open: before the first one, between two,
and while Spark plans. It also has the query started, and started again.

Kafka: `AbstractFetcherThread`, `ReplicaFetcherThread`. The replica's own log end offset is the truth, and the streaming
checkpoint is not: every start deletes it. [FT-01, FM-06]
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.config import Config
from lakelog.replication.errors import StaleBrokerEpochException
from lakelog.replication.protocol.fetch_state import FetchStates, InitialFetchState
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.executors import error_line
from lakelog.replication.server.fetcher.fetch_runner import FetchRunner
from lakelog.replication.server.fetcher.follower_query import FollowerQuery, StreamPlan
from lakelog.replication.server.fetcher.shared_fetch_states import backoff_ms
from lakelog.replication.server.periodic_task import BrokerKilled, PausePoint, PeriodicTask
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId
from lakelog.replication.server.spark_check import kill_if_stopped
from lakelog.replication.storage.delta.commit_listeners import CommitListener, until_poll
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)

_CANCEL_SECONDS = 0.1
_OPEN_SECONDS = 30.0  # a micro-batch costs Spark more than a small fetch costs everything else
_IDLE_TIMES = 10  # as long without a record, for which Spark would have no rows
_QUERY_POLL_SECONDS = 1.0  # a poll of the query is a call of the JVM, and costs more than one at a table


def fetcher_name(key: BrokerIdAndFetcherId) -> str:
    """`ReplicaFetcherThread-<fetcher id>-<source broker>`, as in Kafka. [FM-06]"""
    return f"ReplicaFetcherThread-{key.fetcher_id}-{key.broker_id}"


class LoopHolder:
    """Decides which thread may run a fetcher's loop: the one that holds it. A micro-batch takes it after the step under
    way, and holds it while it is open: about `longest` seconds from its first record on, or ten times as long without
    one. The fetcher's thread takes it for one step, if it is free.

    Only the micro-batch that has begun last may go on. An older one, whose query has ended, may hang in a store, and
    keeps all others out until its step ends.
    """

    def __init__(self, longest: float = _OPEN_SECONDS) -> None:
        self.longest = longest
        self._condition = threading.Condition()
        self._newest: object = None  # the micro-batch that has begun last
        self._waiting: object = None  # it, while it waits for the loop
        self._holder: object = None
        self._is_woken = self._is_over = False

    def begin(self) -> object:
        """A micro-batch begins; it does not take the loop yet. Returns what it calls the other functions with."""
        with self._condition:
            self._newest = object()
            self._condition.notify_all()
            return self._newest

    def take(self, own: object) -> bool:
        """A micro-batch takes the loop, once no other thread holds it. Returns whether it has it, see `has`."""
        with self._condition:
            if self._may_hold(own):
                self._waiting = own
            self._condition.wait_for(lambda: self._holder is None or not self._may_hold(own))
            self._waiting = None if self._waiting is own else self._waiting
            if self._may_hold(own):
                self._holder = own
            return self.has(own)

    def take_if_free(self) -> object:
        """The fetcher's thread takes the loop; None if a micro-batch holds it or waits for it, or the fetcher ends."""
        with self._condition:
            if self._holder is not None or self._waiting is not None or self._is_over:
                return None
            self._holder = object()
            return self._holder

    def _may_hold(self, own: object) -> bool:
        return self._newest is own and not self._is_over

    def has(self, own: object) -> bool:
        """Whether a micro-batch holds the loop and may go on: its query runs, and the fetcher has not ended."""
        return self._holder is own and self._may_hold(own)

    def wait(self, own: object, seconds: float) -> bool:
        """Lets a micro-batch wait for `wake`, `seconds` at most. Returns whether it may go on."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_woken or not self.has(own), seconds)
            self._is_woken = False
            return self.has(own)

    def wake(self) -> None:
        """Ends the wait of the micro-batch that is open, or its next one."""
        with self._condition:
            self._is_woken = True
            self._condition.notify_all()

    def hand_back(self, own: object) -> None:
        """Gives up the loop, if `own` holds it."""
        with self._condition:
            self._holder = None if self._holder is own else self._holder
            self._condition.notify_all()

    def recall(self) -> None:
        """The query has ended: its micro-batch, if one is still under way, ends after its step, and takes no more."""
        with self._condition:
            self._newest = None
            self._condition.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether the fetcher has ended: no micro-batch may go on, and none may follow."""
        return self._is_over

    def end(self) -> None:
        """The fetcher ends."""
        with self._condition:
            self._is_over = True
            self._condition.notify_all()


class QueryStart:
    """A start of a query, in a thread of its own. It takes half a second of a core: Spark analyses the stream, and all
    queries of a broker start at the same time. `query` is the result of `start`, and `error` its error, from Spark or
    from the checkpoint's folder. It calls `when_over` at the end."""

    def __init__(self, start: Callable[[], StreamingQuery], name: str, when_over: Callable[[], object]) -> None:
        self.query: StreamingQuery | None = None
        self.error: Exception | None = None
        self.is_over = False
        self._start, self._when_over = start, when_over
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def begin(self) -> None:
        """Begins the start. Without a thread for it, it is over, with that error."""
        try:
            self._thread.start()
        except RuntimeError as error:  # this process has too many threads
            self.error, self.is_over = error, True

    def run(self) -> None:
        """The start itself."""
        try:
            self.query = self._start()
        except Exception as error:
            self.error = error
        finally:
            self.is_over = True
            self._when_over()

    def wait(self) -> None:
        """Waits for the end of a start that has begun."""
        if not self.is_over:
            self._thread.join()


class ReplicaFetcher:
    """One streaming query, from one source broker, for the partitions of one fetcher id. `states`: their fetch states.
    Those that are removed are not fetched any more once a running append to them has ended: that does not wait for a
    hanging source. [FM-07]"""

    def __init__(
        self, spark: SparkSession, broker_id: int, key: BrokerIdAndFetcherId, source: StorageRoot,
        checkpoints: StorageRoot, config: Config, states: FetchStates, work: FetchRunner, pause_point: PausePoint,
    ) -> None:  # fmt: skip
        self.name = f"broker-{broker_id}:{fetcher_name(key)}"
        self._spark, self._broker_id, self._pause_point = spark, broker_id, pause_point
        self._config, self.states = config, states
        self._round = work
        folder = checkpoints.child(fetcher_name(key))
        self._follower_query = FollowerQuery(spark, self.name, folder, self._process)
        self._loop = LoopHolder()
        self._is_asked = threading.Event()
        self._ending: threading.Thread | None = None
        self._query: StreamingQuery | None = None
        self._starting: QueryStart | None = None
        self._failures, self._restart_at = 0, 0.0  # the query's failures in a row; when it may start again
        self._query_polled_at, self._has_ended = float("-inf"), False
        self._thread = PeriodicTask(
            f"broker-{broker_id}", fetcher_name(key), config.lakelog_poll_interval_ms, pause_point, self.keep_running,
            is_poll=True,
        )  # fmt: skip
        self._listener = CommitListener(self._wake).listen(source.child(LOG.name).uri, "append")

    def start(self) -> None:
        """Starts on a thread of its own: a query takes seconds to start, and the broker must lead meanwhile."""
        self._thread.start()

    def add_partitions(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> None:
        """Adds partitions to fetch. A partition that it has under the same leader epoch stays as it is. [FS-02]"""
        if self.states.assign(partitions):
            self._ask()

    def _ask(self) -> None:
        """Asks for a round at once."""
        self._is_asked.set()
        self._wake()

    def _wake(self) -> None:
        """Makes the holder of the loop, or the next one, check at once what is due."""
        self._loop.wake()
        self._thread.wake()

    def _process(self, headers: DataFrame, _: int) -> None:
        """Runs a micro-batch. Spark plans what is behind, and the thread's rounds go on meanwhile. Then the micro-batch
        stays open, as a fetch session does: its rounds append what is behind, and what the leader gains."""
        query, own = self._follower_query, self._loop.begin()
        is_behind = bool(query.behind)
        plan = self._planned(headers, is_behind) if is_behind or query.appended else None
        try:
            if self._loop.take(own):
                self._run_open(own, plan, may_end_early=plan is not None or not is_behind)
            rows = self._round.stream_rows() if self._loop.has(own) else None
        except (BrokerKilled, StaleBrokerEpochException):
            return  # the broker's own thread finds out by itself
        finally:
            self._loop.hand_back(own)
            self._thread.wake()  # what has come since the last step is for the thread
        if rows is not None:
            appended, behind = rows
            if behind:  # it waits for no plan
                self._ask()
            query.go_on(appended, behind)

    def _planned(self, headers: DataFrame, is_behind: bool) -> StreamPlan | None:
        """Spark's plan of a micro-batch; None without one. The rounds need none, so its errors end no query."""
        try:
            return self._round.plan(headers, is_behind)
        except Exception as error:  # Spark's, also if a user has cancelled its job, and a lack of executors
            if not self._loop.is_over:
                logger.warning("%s: goes on without Spark's plan: %s", self.name, error_line(error))
            return None

    def _run_open(self, own: object, plan: StreamPlan | None, may_end_early: bool) -> None:
        """Runs the loop while the micro-batch is open: until its time is over, or, if it `may_end_early`, until more is
        behind than rounds should take. Without a plan of what is behind the next micro-batch would have none either.
        Its time begins with the first record."""
        self._round.begin_micro_batch(plan)
        self._is_asked.set()  # what was planned is fetched at once
        longest = self._loop.longest
        ends_at, is_idle = time.monotonic() + _IDLE_TIMES * longest, True
        while True:
            again = self._step()
            self._failures = 0
            if is_idle and self._round.has_appended:
                is_idle, ends_at = False, min(ends_at, time.monotonic() + longest)
            left = ends_at - time.monotonic()
            pause = 0.0 if again else min(left, until_poll(self._config.lakelog_poll_interval_ms))
            if (may_end_early and self._round.is_far_behind()) or left <= 0 or not self._loop.wait(own, pause):
                return

    def _step(self) -> bool:
        """One step of the loop: polls the leader, and runs a round if one is due. Returns whether more can be
        fetched at once.

        A failed fetch delays its partitions, an unexpected error all of them [FT-06]. Raises
        StaleBrokerEpochException and BrokerKilled."""
        try:
            self._pause_point.pass_through()
            return self._is_due() and self._fetch()
        except (BrokerKilled, StaleBrokerEpochException):
            raise
        except Exception as error:
            logger.exception("%s: unexpected error", self.name)
            self._round.stop_following()  # a commit may be its cause, and the snapshot is read without it
            self._round.delay_all(f"{type(error).__name__}: {error_line(error)}")
            return False

    def _is_due(self) -> bool:
        """Whether a round was asked for, a delay is over, or the leader's log or rows have changed. It polls the
        leader first, so that any round takes the new segments."""
        return self._round.is_round_due() or self._is_asked.is_set() or self.states.has_due()

    def _fetch(self) -> bool:
        """Runs a round. Returns whether more can be fetched at once; then it has asked for the next one."""
        self._is_asked.clear()  # this round does what was asked for until now
        again = self._round.run()
        if again:
            self._is_asked.set()
        return again

    def keep_running(self) -> None:
        """Starts the query, also again a backoff after it has failed. Runs a step of the loop if no micro-batch is
        open. A query takes seconds to start and to begin, and the follower would leave the ISR meanwhile."""
        self._take_started()
        if self._query is not None and not self._has_ended and self._finds_end(self._query):
            self._has_ended = True
        has_none = self._has_ended or (self._query is None and self._starting is None)
        if has_none:  # Spark may begin a micro-batch of a query that it has just stopped
            self._loop.recall()
        own = self._loop.take_if_free()
        if own is None:
            return
        try:
            if has_none:
                self._restart(self._query)
            if self._step():
                self._thread.wake()
        finally:
            self._loop.hand_back(own)

    def _finds_end(self, query: StreamingQuery) -> bool:
        if time.monotonic() < self._query_polled_at + _QUERY_POLL_SECONDS:
            return False
        self._query_polled_at = time.monotonic()
        self._end_with_spark()  # its queries stay active
        return not query.isActive

    def _restart(self, query: StreamingQuery | None) -> None:
        if query is not None:
            self._query, self._has_ended = None, False
            self._round.stop_following()
            self._note_failure(f"its query has ended: {error_line(query.exception() or 'it was stopped')}")
        elif time.monotonic() >= self._restart_at:
            self._starting = QueryStart(self._follower_query.start, f"{self.name}-start", self._thread.wake)
            self._starting.begin()
            self._take_started()

    def _take_started(self) -> None:
        """Takes the query of a start that is over."""
        if self._starting is None or not self._starting.is_over:
            return
        started, self._starting = self._starting, None
        self._query = started.query
        if started.error is not None:
            self._end_with_spark()
            self._note_failure(f"its query does not start: {error_line(started.error)}")

    def _end_with_spark(self) -> None:
        kill_if_stopped(self._spark, self._broker_id, self._pause_point)

    def _note_failure(self, why: str) -> None:
        """Logs the failure, delays all partitions, and puts off the next start: longer after each failure in a row."""
        self._failures += 1
        wait = backoff_ms(self._config.replica_fetch_backoff_ms, self._failures, random.random()) / 1000
        self._restart_at = time.monotonic() + wait
        logger.error("%s: %s; the next start is in %.1f s", self.name, why, wait)
        self._round.delay_all(why)

    def shutdown(self, seconds: float | None = None) -> None:
        """Ends the query after the running micro-batch. [BR-04]

        It removes all partitions first, so that nothing more is appended. Then it waits for the end at most `seconds`,
        by default `lakelog.storage.timeout.ms`: a source that hangs forever must not hang its followers.
        """
        self.states.remove(self.states.all())
        if self._ending is None:
            self._ending = threading.Thread(target=self._end, name=f"{self.name}-shutdown", daemon=True)
            self._ending.start()
        self._ending.join(self._config.lakelog_storage_timeout_ms / 1000 if seconds is None else seconds)
        if self._ending.is_alive():
            logger.warning("%s: does not wait any longer for the end of its micro-batch", self.name)

    def _end(self) -> None:
        try:
            self._loop.end()
            self._thread.stop()
            if self._starting is not None:
                self._starting.wait()
                self._query = self._starting.query
            if self._query is not None:
                self._stop(self._query)
        except Exception as error:  # Spark's errors too, as when its JVM has died: no caller would receive them
            words = error_line(error)
            logger.error("%s: error while its query was stopped: %s: %s", self.name, type(error).__name__, words)

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
