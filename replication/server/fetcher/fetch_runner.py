"""Carries out the rounds of a fetcher on tables: see `protocol.rounds.fetch_round`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.fetch_state import FetchStates, FollowerState, PartitionFetchState
from lakelog.replication.protocol.partition_changes import first_names
from lakelog.replication.protocol.partition_registration import Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.rounds.broker_steps import OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.carry_out import Handler, carry_out
from lakelog.replication.protocol.rounds.fetch_round import (
    DIVERGED,
    LOST_END,
    AppendFetched,
    CopyBatches,
    FetchedHeaders,
    FetchHeaders,
    FetchLimits,
    FetchRound,
    FetchStep,
    FollowHighWatermarks,
    LeaderBatches,
    RaiseLogStarts,
    ReadFollowedLogs,
    ReadLeaderBatches,
    ReadLeaderRows,
    ReportDiverged,
    ThrottleFetch,
    TruncateLogs,
)
from lakelog.replication.server.executors import error_line
from lakelog.replication.server.fetcher.follower_query import MOST_ROWS, StreamPlan, planned, read_rows
from lakelog.replication.server.fetcher.header_fetch import HeaderFetch
from lakelog.replication.server.fetcher.segment_copier import SegmentCopier
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replication_quotas import ReplicationQuotas
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import Fetched
from lakelog.replication.storage.log.log_snapshot import batch_ends_from
from lakelog.replication.storage.log.log_start import follow_log_starts
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment
from lakelog.replication.storage.log.truncate import truncate_logs
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)

LeaderRows: TypeAlias = Mapping[TopicIdPartition, ReplicaStatus]

_NEVER = float("inf")
_SHARES = 4  # times `lakelog.executor.copy.bytes`: the most bytes of a planned round with executors
_FULL_ROUNDS = 4  # in a row that leave more to fetch, 1 GiB by default: a plan costs little in comparison


@dataclass(frozen=True)
class FetchContext:
    """The follower's log, the leader's id and root, and the callbacks of a fetcher.

    `on_diverged` receives the partitions whose history differs from the leader's. All fetchers of a broker share its
    `writes` and `quotas`. `metadata` returns the assignments that the broker has read last.
    """

    spark: SparkSession
    config: Config
    broker_id: int
    log: ReplicaLog
    leader: int
    source: StorageRoot
    leader_replicas: Callable[[], ReplicaTable]
    follow_high_watermarks: Callable[[FollowHighWatermarks], None]
    on_diverged: Callable[[Collection[TopicIdPartition]], None]
    writes: FollowerWrites
    pause_point: PausePoint
    quotas: ReplicationQuotas
    metadata: Callable[[], Registrations]

    @property
    def name(self) -> str:
        """The broker's name in log lines and commits."""
        return f"broker-{self.broker_id}"


class FetchRunner:
    """Runs the rounds of one fetcher. It shares `states` with the threads of its broker."""

    def __init__(self, context: FetchContext, states: FetchStates) -> None:
        self._context = context
        self._states = states
        config = context.config
        self._source = context.source.child(LOG.name)
        most = config.replica_fetch_response_max_bytes
        bulk = _SHARES * config.lakelog_executor_copy_bytes
        self._copier = SegmentCopier(
            self._source, context.log.root, context.spark, config.lakelog_executor_copy_bytes,
            is_over=lambda: not len(states),
        )  # fmt: skip
        self._headers = HeaderFetch(context.name, self._source, context.leader, most, self._copier.read_footers)
        self._limits = FetchLimits(most, config.replica_fetch_max_bytes, config.replica_fetch_backoff_ms)
        self._bulk_limits = FetchLimits(max(most, bulk), max(most, bulk), config.replica_fetch_backoff_ms)
        self._watch = LeaderRowWatch(config.replica_fetch_wait_max_ms / 1000)
        self._has_read_rows = False  # in this round
        self._has_more = False  # the last fetch has left more
        self._copied: tuple[Segment, ...] = ()
        self._appended: list[FetchedBatch] = []  # since the last micro-batch began
        self._full_rounds = 0  # in a row that left more to fetch, and no plan of it
        self._is_planned = False  # Spark has made a plan, and batches are still in memory: rounds may be large
        self._removals = states.removals  # when the headers in memory were read
        self._handlers = self._made_handlers()

    def _made_handlers(self) -> dict[type[FetchStep], Handler]:
        context, log, name = self._context, self._context.log, self._context.name
        return {
            ReadLeaderRows: self._leader_rows,
            ReadFollowedLogs: self._followed_logs,
            ReadLeaderBatches: self._leader_batches,
            ReportDiverged: self._report_diverged,
            TruncateLogs: lambda step: truncate_logs(log, step.truncations, name),
            ThrottleFetch: lambda step: context.quotas.throttle(context.leader, step.lags),
            FetchHeaders: self._fetch_headers,
            CopyBatches: self._copy,
            AppendFetched: self._append,
            FollowHighWatermarks: context.follow_high_watermarks,
            RaiseLogStarts: lambda step: follow_log_starts(log, step.starts, name),
            PublishReplicas: lambda step: context.writes.rows.add(self, step.why),
        }

    def stop_following(self) -> None:
        """The next round begins to follow the leader's commits anew, and reads what was before from the snapshot."""
        self._headers.stop()
        self._is_planned = False
        self._context.writes.done(self)

    def run(self) -> bool:
        """Runs one round, and returns whether more can be fetched at once. A round takes the segments that
        `is_round_due` has found.

        Raises StaleBrokerEpochException once a newer process of this broker has claimed its tables, and BrokerKilled.
        Other errors of Lakelog and of the store delay the partitions instead.
        """
        before = self._states.all()
        self._forget_headers()
        self._has_read_rows = self._has_more = False
        if self._headers.has_found:  # other fetchers of the broker may have found segments at the same time
            self._context.writes.expect(self)
        try:
            # If there are executors, they copy the rest of a plan: in few rounds, each with enough work for all of
            # them.
            is_bulk = self._is_planned and self._copier.has_executors()
            limits = self._bulk_limits if is_bulk else self._limits
            is_due = carry_out(FetchRound(self._states, limits).run(), self._handlers, self._deciding)
            again = is_due or self._has_more
            self._is_planned = self._is_planned and self._headers.has_left
            self._full_rounds = self._full_rounds + 1 if again and not self._is_planned else 0
            return again
        finally:
            self._copied = ()
            self._context.writes.done(self)
            self._headers.done()
            self._forget_headers()
            self._log_delays(before)

    def _forget_headers(self) -> None:
        """Keeps headers in memory only of partitions that go on from where the last round has left them. One that was
        delayed or removed meanwhile, or has caught up, may lack later ones."""
        removals = self._states.removals  # before the states
        goes_on = {p for p, s in self._states.all().items() if s.lagging and s.is_ready_for_fetch}
        self._headers.forget(goes_on if removals == self._removals else ())
        self._removals = removals

    @property
    def has_appended(self) -> bool:
        """Whether rounds have appended batches of which no micro-batch has the rows."""
        return bool(self._appended)

    def is_far_behind(self) -> bool:
        """Whether more is behind than rounds should take, so that another micro-batch should begin."""
        return self._full_rounds >= _FULL_ROUNDS or len(self._appended) >= MOST_ROWS

    def stream_rows(self) -> tuple[list[FetchedBatch], list[FetchedBatch]]:
        """The batches for the next micro-batch, which the leader's log has gained since the last one began: those that
        the rounds have appended, and those that the follower lacks. The latter stay in memory for the next round."""
        appended, self._appended, self._full_rounds = self._appended, [], 0
        self._is_planned = False
        states = self._states.fetchable()
        if not states or not self._headers.follows:
            return appended, []
        try:
            own = self._context.log.refresh(RECENT_SECONDS)
            topics = {p: own.topics[p.topic_id] for p in states if p.topic_id in own.topics}
            lagging = frozenset(p for p, state in states.items() if state.lagging)
            self._forget_headers()
            behind = self._headers.behind(FetchHeaders({p: own.known(p).log_end for p in states}, lagging, topics))
        except (LakelogException, OSError):  # the next round logs the error
            return appended, []
        self._states.fell_behind({batch.topic_id_partition for batch in behind})
        return appended, behind

    def plan(self, headers: DataFrame, is_behind: bool) -> StreamPlan | None:
        """Lets Spark plan what to append of the rows `headers` of a micro-batch; without one that `is_behind` it only
        reads them, and makes no plan. Raises Spark's errors and ExecutorsFailed."""
        context, own, states = self._context, self._context.log.current(), self._states.all()
        if not is_behind:
            read_rows(context.spark, headers)
            return None
        ends = {p: own.known(p).log_end for p in states}
        return planned(context.spark, headers, context.metadata(), states, ends, context.broker_id, context.leader)

    def begin_micro_batch(self, plan: StreamPlan | None) -> None:
        """The next rounds are of a micro-batch. Partitions that its plan leaves out read the snapshot once they can be
        fetched; the other ones may be fetched in large rounds."""
        self._full_rounds = 0
        if plan is not None:
            self._headers.forget(self._headers.partitions - plan.left_out)
            self._is_planned = bool(plan.chosen)

    def is_round_due(self) -> bool:
        """Whether a round is due, because the leader's log has new segments, or its rows call for one: see
        `HeaderFetch.has_new_commits` and `LeaderRowWatch`."""
        return self._headers.has_new_commits() or self._rows_have_changed()

    def _rows_have_changed(self) -> bool:
        """Whether the leader's rows call for a round. Rows that cannot be read do: it delays the partitions, and logs
        the error."""
        followed = self._states.all()
        if not followed:
            return False
        try:
            table = self._context.leader_replicas()
            table.poll()
            return self._watch.is_round_due(table.replicas, followed)
        except (LakelogException, OSError):
            return any(state.delayed_until is None for state in followed.values())

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Raises BrokerKilled if the broker was killed. That may happen between any two steps."""
        self._context.pause_point.pass_through()
        yield

    def delay_all(self, error: str) -> None:
        """Delays all partitions and publishes the error, because the query does not run. [FT-06, FT-15]"""
        for partition in self._states.all():
            self._states.delay(partition, error, self._limits.backoff_ms)
        self._context.pause_point.pass_through()
        with suppress(KafkaStorageException):  # the broker publishes the rows later
            self._context.writes.rows.add(self, "delayed")

    def _log_delays(self, before: Mapping[TopicIdPartition, PartitionFetchState]) -> None:
        """Logs each new error once, in one line with all its partitions."""
        delayed: dict[str, list[str]] = {}
        topics = self._context.log.current().topics
        for partition, state in self._states.all().items():
            last = before.get(partition)
            is_new = state.error is not None and (last is None or last.error != state.error)
            if is_new and state.error is not None and state.shown_state == FollowerState.DELAYED:
                delayed.setdefault(state.error, []).append(
                    f"{topics.get(partition.topic_id, partition.topic_id)}-{partition.partition}"
                )
        for error, names in delayed.items():
            level = logging.ERROR if error == LOST_END else logging.WARNING
            verb = "is" if len(names) == 1 else "are"
            logger.log(
                level, "%s: %s %s delayed: %s", self._context.name, first_names(names), verb, error_line(error),
                extra={"partitions": names, "error": error_line(error)},
            )  # fmt: skip

    def _leader_rows(self, _: ReadLeaderRows) -> Mapping[TopicIdPartition, ReplicaStatus]:
        table = self._context.leader_replicas()
        table.poll(RECENT_SECONDS)
        rows = table.replicas
        if not self._has_read_rows:  # the round goes on with its first rows, and newer ones call for another round
            self._has_read_rows = True
            self._watch.note_read(rows)
        return rows

    def _followed_logs(self, step: ReadFollowedLogs) -> OwnLogs:
        state = self._context.log.refresh(RECENT_SECONDS)
        faults = {p: fault for p in step.partitions if (fault := state.fault(p)) is not None}
        return OwnLogs({p: state.known(p) for p in step.partitions}, faults)

    def _leader_batches(self, step: ReadLeaderBatches) -> LeaderBatches:
        return LeaderBatches(*batch_ends_from(self._source, step.offsets, step.topics))

    def _report_diverged(self, step: ReportDiverged) -> None:
        for partition in step.partitions:
            name = f"{partition.topic_id}-{partition.partition}"
            logger.error("%s: %s: %s", self._context.name, name, DIVERGED, extra={"partition": name})
        self._context.on_diverged(step.partitions)

    def _fetch_headers(self, step: FetchHeaders) -> FetchedHeaders:
        if self._states.removals != self._removals:  # the round has started over
            self._forget_headers()
        if not self._headers.follows:
            self._headers.begin()
            self._states.fell_behind(self._states.all())
            step = step._replace(lagging=frozenset(step.log_ends))
        found = self._headers.fetch(step)
        self._has_more = self._headers.has_more  # not after an error: a round that fails must not follow at once
        return found

    def _copy(self, step: CopyBatches) -> Mapping[TopicIdPartition, LakelogException]:
        if step.plan.batches:
            self._context.writes.expect(self, sum(step.plan.bytes_by_partition().values()))
        copied = self._copier.copy(step.plan, self._headers.segments)
        self._copied = copied.segments
        fetched = step.plan.without(copied.failed).bytes_by_partition()
        self._context.quotas.record(self._context.leader, fetched)
        return copied.failed

    def _append(self, step: AppendFetched) -> None:
        self._context.writes.append(self, Fetched(self._copied, step.plan.starts(), step.leader_epochs))
        self._appended += step.plan.batches[: MOST_ROWS - len(self._appended)]


class LeaderRowWatch:
    """Compares a leader's rows with those that the last round has read.

    A follower acts at once on a new role, state, epoch, lineage or log start. A new high watermark alone waits up to
    `wait_max` seconds for records, as Kafka's fetch response does. A new log end offset alone makes no round due: the
    new segments in the leader's log do.
    """

    def __init__(self, wait_max: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_max = wait_max
        self._clock = clock
        self._read: LeaderRows = {}
        self._compared: LeaderRows = self._read
        self._due_at = _NEVER

    def note_read(self, rows: LeaderRows) -> None:
        """Notes that a round has read these rows."""
        self._read = self._compared = rows
        self._due_at = _NEVER

    def is_round_due(self, rows: LeaderRows, followed: Collection[TopicIdPartition]) -> bool:
        """Whether a round is due for these rows, of which the partitions in `followed` count."""
        if rows is not self._compared:  # a poll without new rows costs nothing, however many there are
            self._compared = rows
            self._due_at = min(self._due_at, self._clock() + self._wait(rows, followed))
        return self._clock() >= self._due_at

    def _wait(self, rows: LeaderRows, followed: Collection[TopicIdPartition]) -> float:
        pairs = [(_led(self._read, partition), _led(rows, partition)) for partition in followed]
        if any(_urgent(before) != _urgent(now) for before, now in pairs):
            return 0.0
        is_raised = any(before and now and before.high_watermark != now.high_watermark for before, now in pairs)
        return self._wait_max if is_raised else _NEVER


def _led(rows: LeaderRows, partition: TopicIdPartition) -> ReplicaStatus | None:
    """The row of a partition that the broker leads. Its rows as a follower do not matter here."""
    row = rows.get(partition)
    return row if row is not None and row.role == LEADER_ROLE else None


def _urgent(row: ReplicaStatus | None) -> tuple[object, ...] | None:
    return None if row is None else (row.state, row.leader_epoch, row.log_start_offset, row.epochs)
