"""A round of a fetcher: read the leader's rows, truncate, plan, copy, append, publish. See `rounds`.

Kafka: `AbstractFetcherThread.doWork` = `maybeTruncate`, then `maybeFetch`; `processPartitionData`. [FT-02, FT-09]

Batches below the replica's log end are skipped. A batch that begins above it leaves a gap. The next round closes the
gap from the leader's snapshot; a new replica, or one that is far behind, begins the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import (
    CorruptRecordException,
    FencedLeaderEpochException,
    KafkaStorageException,
    LakelogException,
    OffsetOutOfRangeException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol import fetch_state, log_matching
from lakelog.replication.protocol.append_plan import AppendPlan, ByteLimit
from lakelog.replication.protocol.fetch_state import FetchStates, NoLongerFetched, PartitionFetchState
from lakelog.replication.protocol.follow import LeaderRows, Logs
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds.broker_rounds import RULES, BrokerRules
from lakelog.replication.protocol.rounds.broker_steps import OwnLogs, PublishReplicas
from lakelog.replication.protocol.rounds.fetch_steps import (
    AdvanceFetchOffsets,
    CopyBatches,
    FetchedHeaders,
    FetchHeaders,
    FetchStep,
    FinishTruncation,
    FollowHighWatermarks,
    ReadFollowedLogs,
    ReadLeaderRows,
    Round,
    Throttled,
    ThrottleFetch,
)

States: TypeAlias = Mapping[TopicIdPartition, PartitionFetchState]


class FetchLimits(NamedTuple):
    """Limits of a fetch: bytes in total, bytes for each partition, and the backoff of a failed partition in ms."""

    response_max_bytes: int
    partition_max_bytes: int
    backoff_ms: float


class FetchRound:
    """The rounds of one fetcher, over its fetch states."""

    def __init__(self, states: FetchStates, limits: FetchLimits, rules: BrokerRules = RULES) -> None:
        self._states = states
        self._limits = limits
        self._rules = rules

    def run(self) -> Round[bool]:
        """Fetches the partitions that are ready; returns whether another round should follow at once.

        An error of the whole round delays all partitions. If a partition is removed meanwhile, the round writes no
        decision that it made before, and starts over with the remaining partitions: nobody tells twice of new
        segments. [FT-06, FM-07]

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
        failed: log_matching.Errors = yield CopyBatches(plan)
        self._delay(failed)
        plan = plan.without(failed)
        with states.held(removals):
            todo = self._rules.append_fetched(plan, {p: leaders[p] for p in plan.log_ends}, logs)
            yield from self._carry_out(todo, logs)
            return self._settle(plan, fetchable)

    def _leaders(self, followed: States, rows: LeaderRows, removals: int) -> dict[TopicIdPartition, ReplicaStatus]:
        """The rows of the leaders that have taken up the leader epoch of their partition.

        A leader that is behind (UNKNOWN_LEADER_EPOCH) is waited for: its new row wakes this fetcher. If the follower is
        behind (FENCED_LEADER_EPOCH), the partition is delayed until newer metadata comes. [FT-14, FM-10]
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
        self._delay_for_good(fenced, removals)
        self._states.fell_behind(p for p in followed if p not in leaders)  # this round drops their headers
        return leaders

    def _delay_for_good(self, errors: Mapping[TopicIdPartition, str], removals: int) -> None:
        """Delays partitions until they follow at another leader epoch. Raises NoLongerFetched if a partition was
        removed meanwhile: it may follow at another epoch by now."""
        with self._states.held(removals):
            for partition, error in errors.items():
                self._states.delay(partition, error, fetch_state.NEVER)

    def _delay_broken(self, own: OwnLogs) -> None:
        """Delays partitions with a broken file in this broker's log; the broker takes them offline. [FT-12, OL-01]"""
        self._delay({p: CorruptRecordException(fault) for p, fault in own.faults.items()})

    def _maybe_truncate(
        self, logs: Logs, leaders: LeaderRows, removals: int
    ) -> Round[list[FetchStep]]:  # fmt: skip
        """The truncations that are due. A partition is delayed if its leader's batches cannot be read."""
        states = self._states
        with states.held(removals):
            yield from log_matching.compare_rows(states, logs, leaders)
        batches, failed = yield from log_matching.leader_batches(states, logs, leaders, self._rules)
        self._delay(failed)
        self._delay_for_good(log_matching.lost_ends(logs, leaders, batches), removals)
        return self._rules.maybe_truncate(states.truncating(), states.fetchable(), logs, leaders, batches)

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
        wanted = [b for b in found.batches if b.topic_id_partition in sound]
        kept = [b for b in wanted if may_append(b, leaders[b.topic_id_partition], sound[b.topic_id_partition].offset)]
        most = self._limits
        plan = self._rules.plan_appends(kept, sound, most.response_max_bytes, most.partition_max_bytes, limits)
        with self._states.held(removals):
            yield from log_matching.tell_diverged(self._states, plan.diverged)
        missing = set() if plan.batches else plan.gaps & lagging
        self._delay(
            {p: OffsetOutOfRangeException(f"the leader has nothing at offset {ends[p].offset}") for p in missing}
        )
        return plan.without(plan.diverged | missing)

    def _settle(self, plan: AppendPlan, fetchable: States) -> bool:
        """Ends `lagging` where the snapshot was read to its end, and begins it where a gap is left. Returns whether
        another round is due at once."""
        for partition in plan.log_ends:
            before = fetchable[partition]
            if partition not in plan.gaps and before.lagging:
                self._states.caught_up(partition)
            elif partition in plan.gaps:
                self._states.fell_behind([partition])
        states = ((p, s) for p, s in self._states.all().items() if p in fetchable)
        return any(s.diverged or (s.lagging and s.is_ready_for_fetch) for _, s in states)

    def _delay(self, errors: Mapping[TopicIdPartition, Exception]) -> None:
        for partition, error in errors.items():
            self._states.delay(partition, _text(error), self._limits.backoff_ms)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
