"""A round of a fetcher: look at the leader, truncate, plan, copy, append, tell. See `rounds`.

Kafka: `AbstractFetcherThread.doWork` = `maybeTruncate`, then `maybeFetch`; `processPartitionData`. [FT-02, FT-09]

What lies below the replica's log end is skipped; what does not begin at it is a gap, and a gap is closed by reading
the leader's snapshot, which is also how a new or far-behind replica begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from replication.errors import (
    CorruptRecordException,
    FencedLeaderEpochException,
    KafkaStorageException,
    LakelogException,
    OffsetOutOfRangeException,
    StaleBrokerEpochException,
)
from replication.protocol import fetch_state, log_matching
from replication.protocol.append_plan import AppendPlan, ByteLimit
from replication.protocol.broker_rounds import RULES, BrokerRules
from replication.protocol.fetch_state import PartitionFetchState
from replication.protocol.fetch_states import FetchStates, NoLongerFetched
from replication.protocol.fetch_steps import (
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
from replication.protocol.log_matching import Leaders, Logs
from replication.protocol.partition_log import PartitionLog
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.steps import OwnLogs, PublishReplicas

States: TypeAlias = Mapping[TopicIdPartition, PartitionFetchState]


class FetchLimits(NamedTuple):
    """Bytes that a fetch, and one of its partitions, may bring; milliseconds until a partition that failed is fetched
    again."""

    response_max_bytes: int
    partition_max_bytes: int
    backoff_ms: float


class FetchRound:
    """The rounds of one fetcher; its states say what is to be fetched."""

    def __init__(self, states: FetchStates, limits: FetchLimits, rules: BrokerRules = RULES) -> None:
        self._states = states
        self._limits = limits
        self._rules = rules

    def run(self) -> Round[bool]:
        """Fetches what may be fetched; tells whether there is more to be had at once.

        An error delays all partitions: the fetch as a whole has failed. A round from which a partition is taken writes
        nothing more; the next one fetches what is left. [FT-06, FM-07]
        """
        try:
            return (yield from self._fetch())
        except NoLongerFetched:
            return len(self._states) > 0
        except StaleBrokerEpochException:
            raise
        except (LakelogException, OSError) as error:
            self._delay(dict.fromkeys(self._states.all(), error))
        with suppress(KafkaStorageException):  # the broker says it when it can
            yield PublishReplicas("delayed")
        return False

    def _fetch(self) -> Round[bool]:
        """The leader's rows are read before the own log: a row that tells more than the log has counts for nothing."""
        states = self._states
        states.end_delays()
        removals, followed = states.removals, states.all()
        rows: Leaders = yield ReadLeaderRows(tuple(followed))
        leaders = self._leaders(followed, rows, removals)
        own: OwnLogs = yield ReadFollowedLogs(tuple(followed))
        self._delay_broken(own)
        logs = dict(own.logs)
        truncations = yield from self._maybe_truncate(logs, leaders, removals)
        with states.held(removals):
            yield from self._carry_out(truncations, logs)
        limits = yield from self._throttle(leaders)
        fetchable = {p: s for p, s in states.fetchable().items() if p in leaders}
        plan = yield from self._plan(fetchable, logs, leaders, limits)
        failed: log_matching.Errors = yield CopyBatches(plan)
        self._delay(failed)
        plan = plan.without(failed)
        with states.held(removals):
            todo = self._rules.append_fetched(plan, {p: leaders[p] for p in plan.log_ends}, logs)
            yield from self._carry_out(todo, logs)
            return self._settle(plan, fetchable)

    def _leaders(self, followed: States, rows: Leaders, removals: int) -> dict[TopicIdPartition, Replica]:
        """The rows of the leaders that have taken up the epoch that we follow.

        One that is slower than we are (UNKNOWN_LEADER_EPOCH) is waited for: its row will move and wake us. Where we are
        the slower ones (FENCED_LEADER_EPOCH), the partition has failed until the metadata tells us more. [FT-14, FM-10]
        """
        check, found = self._rules.check_leader_row, {}
        leaders: dict[TopicIdPartition, Replica] = {}
        for partition, state in followed.items():
            row = rows.get(partition)
            error = check(row, partition, state.leader_epoch)
            if isinstance(error, FencedLeaderEpochException):
                found[partition] = _said(error)
            elif error is None and row is not None:
                leaders[partition] = row
        self._delay_for_good(found, removals)
        return leaders

    def _delay_for_good(self, errors: Mapping[TopicIdPartition, str], removals: int) -> None:
        """Until another leader epoch: so not what is followed under another one by now."""
        with self._states.held(removals):
            for partition, error in errors.items():
                self._states.delay(partition, error, fetch_state.NEVER)

    def _delay_broken(self, own: OwnLogs) -> None:
        """A partition with a broken file in our own log waits, and no other: soon it is offline. [FT-12, OL-01]"""
        at_work = {**self._states.fetchable(), **self._states.truncating()}
        self._delay({p: CorruptRecordException(fault) for p, fault in own.faults.items() if p in at_work})

    def _maybe_truncate(
        self, logs: Logs, leaders: dict[TopicIdPartition, Replica], removals: int
    ) -> Round[list[FetchStep]]:  # fmt: skip
        """The truncations that are due. A partition whose leader's batches cannot be read is delayed, and left out of
        `leaders`."""
        states = self._states
        yield from log_matching.compare_rows(states, logs, leaders)
        batches, failed = yield from log_matching.leader_batches(states, logs, leaders, self._rules)
        self._delay(failed)
        lost = log_matching.lost_ends(logs, leaders, batches)
        self._delay_for_good(lost, removals)
        for partition in (*failed, *lost):
            del leaders[partition]
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
        """Truncating may have found a file that cannot be read; `logs` are as they are now."""
        own: OwnLogs = yield ReadFollowedLogs(partitions)
        self._delay_broken(own)
        logs.update(own.logs)
        ends = {p: log.log_end_offset for p, log in own.logs.items() if p not in own.faults}
        for partition, end in ends.items():
            self._states.truncated(partition, end)
        yield FollowHighWatermarks(ends)

    def _throttle(self, leaders: Leaders) -> Round[tuple[ByteLimit, ...]]:
        """Delays what a quota holds back, until the snapshot is due; answers what may be taken of the rest. That such a
        row counts for nothing is right: no ISR has it, and no HW must wait for what is slow on purpose. [TH-01]"""
        fetchable = {p: s for p, s in self._states.fetchable().items() if p in leaders}
        lags = {p: leaders[p].high_watermark - s.fetch_offset for p, s in fetchable.items()}
        found: Throttled = yield ThrottleFetch(lags)
        for partition, seconds in found.left_out.items():
            self._states.delay(partition, None, seconds * 1000)
        return found.limits

    def _plan(
        self, fetchable: States, logs: Logs, leaders: Leaders, limits: tuple[ByteLimit, ...]
    ) -> Round[AppendPlan]:  # fmt: skip
        """What to append of the partitions that neither fail nor have diverged."""
        ends = {p: logs[p].log_end for p in fetchable}
        lagging = frozenset(p for p, state in fetchable.items() if state.lagging)
        found: FetchedHeaders = yield FetchHeaders(ends, lagging, {p: leaders[p].topic for p in ends})
        self._delay(found.failed)
        if found.tail_has_gap:
            self._states.fell_behind(p for p in ends if p not in lagging)
        sound = {p: end for p, end in ends.items() if p not in found.failed}
        may_append = self._rules.may_append
        wanted = [b for b in found.batches if b.partition in sound]
        kept = [b for b in wanted if may_append(b, leaders[b.partition], sound[b.partition].offset)]
        response, partition, _ = self._limits
        plan = self._rules.plan_appends(kept, sound, response, partition, limits)
        yield from log_matching.tell_diverged(self._states, plan.diverged)
        vain = set() if plan.batches else plan.gaps & lagging
        nothing = {p: f"the leader has nothing at offset {ends[p].offset}" for p in vain}
        self._delay({p: OffsetOutOfRangeException(text) for p, text in nothing.items()})
        return plan.without(plan.diverged | vain)

    def _settle(self, plan: AppendPlan, fetchable: States) -> bool:
        """Whether the tail may be followed from now on, or a gap is to be closed; tells whether that is at once."""
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
            self._states.delay(partition, _said(error), self._limits.backoff_ms)


def _said(error: Exception) -> str:
    return f"{error.name if isinstance(error, LakelogException) else type(error).__name__}: {error}"
