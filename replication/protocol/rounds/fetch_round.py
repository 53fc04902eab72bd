"""A round of a fetcher: read the leader's rows, truncate, plan, copy, append, publish.

`carry_out` says what a round is.

Kafka: `AbstractFetcherThread.doWork` = `maybeTruncate`, then `maybeFetch`; `processPartitionData`. [FT-02, FT-09]

Batches below the replica's log end are skipped. A batch that begins above the log end leaves a gap, and marks the
partition as *lagging*. The next round closes the gap from the snapshot of the leader's log. A new replica, or one that
is far behind, begins with the snapshot too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import (
    CorruptRecordException,
    FencedLeaderEpochException,
    KafkaStorageException,
    LakelogException,
    OffsetOutOfRangeException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol import fetch_state
from lakelog.replication.protocol.append_plan import AppendPlan, ByteLimit, FetchedBatch, plan_appends
from lakelog.replication.protocol.fencing import check_leader_row
from lakelog.replication.protocol.fetch_state import FetchStates, NoLongerFetched, PartitionFetchState
from lakelog.replication.protocol.leader_epoch import covers
from lakelog.replication.protocol.log_retention import follower_log_start
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.broker_steps import OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.carry_out import Result
from lakelog.replication.protocol.truncation import (
    Truncation,
    are_of_the_log,
    has_other_history,
    leader_lost_its_end,
    truncation_for,
)

Logs: TypeAlias = Mapping[TopicIdPartition, PartitionLog]
LeaderRows: TypeAlias = Mapping[TopicIdPartition, ReplicaStatus]
Ends: TypeAlias = Mapping[TopicIdPartition, Sequence[LogEnd]]
Errors: TypeAlias = Mapping[TopicIdPartition, LakelogException]
States: TypeAlias = Mapping[TopicIdPartition, PartitionFetchState]

DIVERGED = "DIVERGED: the log has other batches than its leader's under the same leader epochs"
LOST_END = "DIVERGED: the leader's log has lost records of its own epoch; waiting for another leader epoch"


class ReadLeaderRows(NamedTuple):
    """Reads the leader's rows of these partitions. Answer: its rows by partition."""

    partitions: tuple[TopicIdPartition, ...]


class ReadFollowedLogs(NamedTuple):
    """Reads this broker's log up to its newest commit. Answer: `OwnLogs` of these partitions."""

    partitions: tuple[TopicIdPartition, ...]


class ReadLeaderBatches(NamedTuple):
    """Reads from the leader's log the ends of the batches that end above these offsets. Answer: `LeaderBatches`."""

    offsets: Mapping[TopicIdPartition, int]
    topics: Mapping[TopicIdPartition, str]


class LeaderBatches(NamedTuple):
    """The ends of a leader's batches, in order, and the errors of partitions whose batches could not be read."""

    ends: Ends
    failed: Errors


class ReportDiverged(NamedTuple):
    """Counts these divergences, and logs that the partitions' histories differ from their leaders'."""

    partitions: tuple[TopicIdPartition, ...]


class TruncateLogs(NamedTuple):
    """One commit on the log: removes the batches that the leader lacks."""

    truncations: Mapping[TopicIdPartition, Truncation]


class FinishTruncation(NamedTuple):
    """The logs agree with their leaders': sets the fetch offsets to their LEOs, and lowers HWs that are above.

    The round does not yield this step and `AdvanceFetchOffsets`, but carries them out by other steps.
    """

    partitions: tuple[TopicIdPartition, ...]


class ThrottleFetch(NamedTuple):
    """In memory: asks which partitions a quota holds back, given their lags in records. Answer: `Throttled`."""

    lags: Mapping[TopicIdPartition, int]


class Throttled(NamedTuple):
    """The partitions to leave out, with their delays in seconds, and the byte limits of the others."""

    left_out: Mapping[TopicIdPartition, float] = {}
    limits: tuple[ByteLimit, ...] = ()


class FetchHeaders(NamedTuple):
    """Reads batch headers of these partitions from the leader's log: those committed since the last fetch, and for
    lagging partitions all that end above their log ends. Answer: `FetchedHeaders`."""

    log_ends: Mapping[TopicIdPartition, LogEnd]
    lagging: frozenset[TopicIdPartition]
    topics: Mapping[TopicIdPartition, str]


class FetchedHeaders(NamedTuple):
    """Batches in any order, perhaps late or twice; the errors of partitions with a broken file; and whether new
    commits or segments could not be read."""

    batches: Sequence[FetchedBatch]
    failed: Mapping[TopicIdPartition, LakelogException]
    commits_have_gap: bool


class CopyBatches(NamedTuple):
    """Copies the plan's batches next to this broker's log, without a commit. Answer: the errors of partitions that
    could not be copied."""

    plan: AppendPlan


class AppendFetched(NamedTuple):
    """One commit on the log: appends the plan's batches, if every log still has the same role and ends with the chain
    before its first batch."""

    plan: AppendPlan
    leader_epochs: Mapping[TopicIdPartition, int]


class AdvanceFetchOffsets(NamedTuple):
    """Moves fetch offsets to the log ends, and HWs to the leaders' HWs."""

    log_ends: Mapping[TopicIdPartition, int]
    leader_high_watermarks: Mapping[TopicIdPartition, int]


class FollowHighWatermarks(NamedTuple):
    """In memory: sets HWs to the leaders' HWs where given, and lowers those that are above the log end."""

    log_ends: Mapping[TopicIdPartition, int]
    leader_high_watermarks: Mapping[TopicIdPartition, int] = {}


class RaiseLogStarts(NamedTuple):
    """One commit on the log: raises log starts, if each log still follows under its leader epoch. `starts`: leader
    epoch and offset of each partition."""

    starts: Mapping[TopicIdPartition, tuple[int, int]]


FetchStep: TypeAlias = (
    ReadLeaderRows | ReadFollowedLogs | ReadLeaderBatches | ReportDiverged | TruncateLogs | FinishTruncation
    | ThrottleFetch | FetchHeaders | CopyBatches | AppendFetched | AdvanceFetchOffsets | FollowHighWatermarks |
    RaiseLogStarts | PublishReplicas
)  # fmt: skip

Round: TypeAlias = carry_out.Round[FetchStep, Result]


class FetchLimits(NamedTuple):
    """Limits of a fetch: bytes in total, bytes for each partition, and the backoff of a failed partition in ms."""

    response_max_bytes: int
    partition_max_bytes: int
    backoff_ms: float


def maybe_truncate(
    truncating: Collection[TopicIdPartition], fetching: Collection[TopicIdPartition], logs: Logs, leaders: LeaderRows,
    leader_batches: Ends,
) -> list[FetchStep]:  # fmt: skip
    """The truncations of Truncating partitions, before anything is fetched. A Fetching partition is truncated too if
    its log ends below the leader's log start: the leader has deleted the records in between, so the log starts over.

    The rows say Truncating until the truncation is committed, so no row claims records that are about to be truncated.
    `leader_batches`: for diverged partitions, the ends of the leader's batches.

    Kafka: `AbstractFetcherThread.maybeTruncate`, `fetchOffsetAndTruncate`. [TR-06, TR-07, TR-08, FT-14]
    """
    behind = {p for p in fetching if p in leaders and logs[p].log_end_offset < leaders[p].log_start_offset}
    due = tuple(sorted({p for p in truncating if p in leaders} | behind))
    if not due:
        return []
    truncations = {p: truncation_for(logs[p], leaders[p], leader_batches.get(p)) for p in due}
    needed = {p: t for p, t in truncations.items() if t.offset < logs[p].log_end_offset or t.restart is not None}
    return [*([TruncateLogs(needed)] if needed else []), FinishTruncation(due), PublishReplicas("truncated")]


def may_append(batch: FetchedBatch, leader: ReplicaStatus, fetch_offset: int) -> bool:
    """Whether the leader's lineage still has the batch, from the fetch offset on.

    A late read may bring a batch that the leader has truncated since. Offsets below the fetch offset are not checked,
    because the leader may have deleted them. [FT-07]
    """
    return covers(leader.epochs, batch.leader_epoch, max(batch.base_offset, fetch_offset), batch.last_offset)


def append_fetched(plan: AppendPlan, leaders: LeaderRows, logs: Logs) -> list[FetchStep]:
    """The steps of an append: the log first, then the row, so a row never claims more than its log.

    Each log start follows the leader's, but not beyond the new log end.

    Kafka: `ReplicaFetcherThread.processPartitionData`. [FT-09, HW-03, DR-02]
    """
    epochs = {p: leaders[p].leader_epoch for p in {batch.topic_id_partition for batch in plan.batches}}
    ends = {p: plan.log_ends[p].offset for p in leaders}
    before = {p: logs[p].log_start_offset for p in leaders}
    starts = {p: follower_log_start(before[p], ends[p], row.log_start_offset) for p, row in leaders.items()}
    raised = {p: (leaders[p].leader_epoch, start) for p, start in starts.items() if start > before[p]}
    return [
        *([AppendFetched(plan, epochs)] if plan.batches else []),
        AdvanceFetchOffsets(ends, {p: row.high_watermark for p, row in leaders.items()}),
        *([RaiseLogStarts(raised)] if raised else []),
        PublishReplicas("fetched", may_wait=True),
    ]


@dataclass(frozen=True)
class FetchRules:
    """The rules that a round of a fetcher calls, as fields, so that the simulation can replace one."""

    check_leader_row: Callable[[ReplicaStatus | None, TopicIdPartition, int], LakelogException | None] = (
        check_leader_row
    )
    maybe_truncate: Callable[..., list[FetchStep]] = maybe_truncate
    may_append: Callable[[FetchedBatch, ReplicaStatus, int], bool] = may_append
    plan_appends: Callable[..., AppendPlan] = plan_appends
    append_fetched: Callable[[AppendPlan, LeaderRows, Logs], list[FetchStep]] = append_fetched


FETCH_RULES = FetchRules()


class FetchRound:
    """The rounds of one fetcher, over its fetch states."""

    def __init__(self, states: FetchStates, limits: FetchLimits, rules: FetchRules = FETCH_RULES) -> None:
        self._states = states
        self._limits = limits
        self._rules = rules

    def run(self) -> Round[bool]:
        """Fetches the partitions that are ready; returns whether another round should follow at once.

        An error of the whole round delays all partitions. If a partition is removed meanwhile, the round drops its
        decisions and starts over with the other partitions. It does not leave these to the next round, because new
        segments are announced only once. [FT-06, FM-07]

        Raises StaleBrokerEpochException if a newer process of the broker has taken over.
        """
        try:
            while True:
                with suppress(NoLongerFetched):
                    return (yield from self._fetch())
        except StaleBrokerEpochException:
            raise
        except (LakelogException, OSError) as error:
            self._delay(dict.fromkeys(self._states.all(), error))
        with suppress(KafkaStorageException):  # the broker publishes it once its storage works
            yield PublishReplicas("delayed")
        return False

    def _fetch(self) -> Round[bool]:
        states = self._states
        states.end_delays()
        removals, followed = states.removals, states.all()
        if not followed:
            return False
        rows: LeaderRows = yield ReadLeaderRows(tuple(followed))
        leaders = self._leaders(followed, rows, removals)
        own: OwnLogs = yield ReadFollowedLogs(tuple(followed))
        self._delay_broken(own)
        logs = dict(own.logs)
        truncations = yield from self._maybe_truncate(logs, leaders, removals)
        with states.held(removals):
            yield from self._carry_out(truncations, logs)
        limits = yield from self._throttle(leaders)
        fetchable = self._fetchable(leaders)
        plan = yield from self._plan(fetchable, logs, leaders, limits, removals)
        failed: Errors = yield CopyBatches(plan)
        self._delay(failed)
        plan = plan.without(failed)
        with states.held(removals):
            todo = self._rules.append_fetched(plan, {p: leaders[p] for p in plan.log_ends}, logs)
            yield from self._carry_out(todo, logs)
            return self._settle(plan, fetchable)

    def _leaders(self, followed: States, rows: LeaderRows, removals: int) -> dict[TopicIdPartition, ReplicaStatus]:
        """The rows of the leaders that have taken up the leader epoch of their partition.

        If a leader is behind (UNKNOWN_LEADER_EPOCH), the partition waits without a delay: the leader's new row wakes
        this fetcher. If the follower is behind (FENCED_LEADER_EPOCH), it is delayed until newer metadata comes. [FT-14,
        FM-10]
        """
        check = self._rules.check_leader_row
        fenced: dict[TopicIdPartition, str] = {}
        leaders: dict[TopicIdPartition, ReplicaStatus] = {}
        for partition, state in followed.items():
            row = rows.get(partition)
            error = check(row, partition, state.leader_epoch)
            if isinstance(error, FencedLeaderEpochException):
                fenced[partition] = _text(error)
            elif error is None and row is not None:
                leaders[partition] = row
        self._delay_until_next_epoch(fenced, removals)
        self._states.fell_behind(p for p in followed if p not in leaders)  # this round drops their headers
        return leaders

    def _delay(self, errors: Mapping[TopicIdPartition, Exception]) -> None:
        for partition, error in errors.items():
            self._states.delay(partition, _text(error), self._limits.backoff_ms)

    def _delay_until_next_epoch(self, errors: Mapping[TopicIdPartition, str], removals: int) -> None:
        """Delays partitions until they follow at another leader epoch. Raises NoLongerFetched if a partition was
        removed meanwhile: it may follow at another epoch by now."""
        with self._states.held(removals):
            for partition, error in errors.items():
                self._states.delay(partition, error, fetch_state.NEVER)

    def _delay_broken(self, own: OwnLogs) -> None:
        """Delays partitions with a broken file in this broker's log; the broker takes them offline. [FT-12, OL-01]"""
        self._delay({p: CorruptRecordException(fault) for p, fault in own.faults.items()})

    def _maybe_truncate(self, logs: Logs, leaders: LeaderRows, removals: int) -> Round[list[FetchStep]]:
        """The truncations that are due. A partition is delayed if its leader's batches cannot be read."""
        states = self._states
        with states.held(removals):
            yield from self._compare_rows(logs, leaders)
        batches, failed = yield from self._leader_batches(logs, leaders)
        self._delay(failed)
        self._delay_until_next_epoch(_lost_ends(logs, leaders, batches), removals)
        return self._rules.maybe_truncate(states.truncating(), states.fetchable(), logs, leaders, batches)

    def _compare_rows(self, logs: Logs, leaders: LeaderRows) -> Round[None]:
        """Marks fetchable partitions as diverged if their leader's row has another chain. [TR-08]"""
        fetchable = self._fetchable(leaders)
        yield from self._report_diverged(p for p in fetchable if has_other_history(logs[p], leaders[p]))

    def _report_diverged(self, partitions: Iterable[TopicIdPartition]) -> Round[None]:
        """Marks partitions as diverged and publishes their rows, which do not count until the truncation is done."""
        diverged = tuple(sorted(partitions))
        if diverged:
            self._states.diverged(diverged, DIVERGED)
            yield ReportDiverged(diverged)
            yield PublishReplicas("diverged")

    def _leader_batches(self, logs: Logs, leaders: LeaderRows) -> Round[tuple[Ends, Errors]]:
        """The ends of the leaders' batches, for partitions whose lineages do not show where to truncate; and the errors
        of the partitions whose batches cannot be read, or may not be used.

        A log does not show whether its broker still leads, or whether the row that was read describes this log. So the
        round reads the rows again after the log, and compares all three. [TR-02, TR-08]
        """
        wanted = {
            p: logs[p].first_offset
            for p, state in self._states.truncating().items()
            if p in leaders and (state.diverged or has_other_history(logs[p], leaders[p]))
        }
        if not wanted:
            return {}, {}
        found: LeaderBatches = yield ReadLeaderBatches(wanted, {p: leaders[p].topic for p in wanted})
        rows: LeaderRows = yield ReadLeaderRows(tuple(wanted))
        doubts = {p: self._doubt(ends, leaders[p], rows.get(p), wanted[p]) for p, ends in found.ends.items()}
        failed = {**found.failed, **{p: error for p, error in doubts.items() if error is not None}}
        return {p: ends for p, ends in found.ends.items() if p not in failed}, failed

    def _doubt(
        self, ends: Sequence[LogEnd], before: ReplicaStatus, now: ReplicaStatus | None, first: int
    ) -> LakelogException | None:  # fmt: skip
        """Why these batches of the leader must not decide a truncation; None if they may. `before` and `now` are its
        rows, read before and after the batches."""
        partition = before.topic_id_partition
        error = self._rules.check_leader_row(now, partition, before.leader_epoch)
        if error is not None or (now is not None and are_of_the_log(ends, before, now, first)):
            return error
        return KafkaStorageException(
            f"{before.topic}-{partition.partition}: not truncated: the log of broker {before.broker_id} is not the one "
            f"that its row describes, which ends at offset {before.log_end_offset}"
        )

    def _carry_out(self, todo: Iterable[FetchStep], logs: dict[TopicIdPartition, PartitionLog]) -> Round[None]:
        for step in todo:
            match step:
                case FinishTruncation():
                    yield from self._finish_truncation(step.partitions, logs)
                case AdvanceFetchOffsets():
                    for partition, high_watermark in step.leader_high_watermarks.items():
                        self._states.advanced(partition, step.log_ends[partition], high_watermark)
                    yield FollowHighWatermarks(step.log_ends, step.leader_high_watermarks)
                case _:
                    yield step

    def _finish_truncation(
        self, partitions: tuple[TopicIdPartition, ...], logs: dict[TopicIdPartition, PartitionLog]
    ) -> Round[None]:
        """Reads the truncated logs again into `logs`. Delays partitions in which the truncation found a broken file."""
        own: OwnLogs = yield ReadFollowedLogs(partitions)
        self._delay_broken(own)
        logs.update(own.logs)
        ends = {p: log.log_end_offset for p, log in own.logs.items() if p not in own.faults}
        for partition, end in ends.items():
            self._states.truncated(partition, end)
        yield FollowHighWatermarks(ends)

    def _fetchable(self, leaders: LeaderRows) -> States:
        return {p: s for p, s in self._states.fetchable().items() if p in leaders}

    def _throttle(self, leaders: LeaderRows) -> Round[tuple[ByteLimit, ...]]:
        """Delays partitions that a quota holds back; returns the byte limits of the others.

        The row of a delayed replica counts neither for the ISR nor for the HW, so no leader waits for it. [TH-01]
        """
        lags = {p: leaders[p].high_watermark - s.fetch_offset for p, s in self._fetchable(leaders).items()}
        found: Throttled = yield ThrottleFetch(lags)
        for partition, seconds in found.left_out.items():
            self._states.delay(partition, None, seconds * 1000)
        return found.limits

    def _plan(
        self, fetchable: States, logs: Logs, leaders: LeaderRows, limits: tuple[ByteLimit, ...], removals: int
    ) -> Round[AppendPlan]:  # fmt: skip
        """Plans the appends; leaves out partitions that fail or have diverged."""
        ends = {p: logs[p].log_end for p in fetchable}
        lagging = frozenset(p for p, state in fetchable.items() if state.lagging)
        found: FetchedHeaders = yield FetchHeaders(ends, lagging, {p: leaders[p].topic for p in ends})
        self._delay(found.failed)
        if found.commits_have_gap:
            self._states.fell_behind(ends)
        sound = {p: end for p, end in ends.items() if p not in found.failed}
        may_append = self._rules.may_append
        readable = [(b.topic_id_partition, b) for b in found.batches if b.topic_id_partition in sound]
        kept = [b for p, b in readable if may_append(b, leaders[p], sound[p].offset)]
        total, each = self._limits.response_max_bytes, self._limits.partition_max_bytes
        plan = self._rules.plan_appends(kept, sound, total, each, limits)
        with self._states.held(removals):
            yield from self._report_diverged(plan.diverged)
        missing = set() if plan.batches else plan.gaps & lagging
        self._delay(
            {p: OffsetOutOfRangeException(f"the leader has nothing at offset {ends[p].offset}") for p in missing}
        )
        return plan.without(plan.diverged | missing)

    def _settle(self, plan: AppendPlan, fetchable: States) -> bool:
        """Marks partitions with a gap as lagging, and the others as caught up. Returns whether another round is due at
        once: a partition is still lagging, or was found diverged."""
        for partition in plan.log_ends:
            before = fetchable[partition]
            if partition not in plan.gaps and before.lagging:
                self._states.caught_up(partition)
            elif partition in plan.gaps:
                self._states.fell_behind([partition])
        states = ((p, s) for p, s in self._states.all().items() if p in fetchable)
        return any(s.diverged or (s.lagging and s.is_ready_for_fetch) for _, s in states)


def _lost_ends(logs: Logs, leaders: LeaderRows, batches: Ends) -> dict[TopicIdPartition, str]:
    """The partitions whose leader's log has lost its end, with the error text. [TR-08]"""
    return {p: LOST_END for p, ends in batches.items() if leader_lost_its_end(logs[p], leaders[p], ends)}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
