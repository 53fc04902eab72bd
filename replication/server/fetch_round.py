"""What happens in one micro-batch of a follower: look at the leader, cut, plan, copy, commit, tell.

Kafka: `AbstractFetcherThread.doWork` = `maybeTruncate`, then `maybeFetch`; `processPartitionData`. [FT-02, FT-09]

What lies below the replica's log end is skipped; what does not begin at it is a gap, and a gap is closed by reading
the leader's snapshot, which is also how a new or far-behind replica begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from replication.config import Config
from replication.errors import (
    CorruptRecordException,
    FencedLeaderEpochException,
    LakelogException,
    OffsetOutOfRangeException,
)
from replication.protocol import fetch_state
from replication.protocol.append_plan import AppendPlan, ByteLimit
from replication.protocol.fencing import check_leader_row
from replication.protocol.fetch_state import PartitionFetchState
from replication.protocol.follow import append_fetched, maybe_truncate
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.steps import (
    AdvanceFetchOffsets,
    AppendFetched,
    CutLogs,
    FinishTruncation,
    PublishReplicas,
    RaiseLogStarts,
    Step,
)
from replication.server.fetch_planner import FetchPlanner
from replication.server.fetch_states import FetchStates
from replication.server.gate import Gate
from replication.server.log_matching import LogMatching
from replication.server.replication_quotas import FetcherQuotas
from replication.server.segment_copier import Copied, SegmentCopier
from replication.storage.append import append_as_follower
from replication.storage.cut import cut_logs
from replication.storage.filesystem import StorageRoot
from replication.storage.log_cleaning import follow_log_starts
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable
from schemas import LOG

logger = logging.getLogger(__name__)

Replicas = Mapping[TopicIdPartition, Replica]
States = Mapping[TopicIdPartition, PartitionFetchState]


@dataclass(frozen=True)
class FetchContext:
    """What a round works on: the follower's log, the leader's root, and whom to tell of progress.

    `on_high_watermarks` takes the leader's HW of each partition that was fetched, `on_truncated` what was cut,
    `on_diverged` the partitions whose history was found to differ; `publish` writes the follower's rows.
    """

    spark: SparkSession
    config: Config
    name: str
    log: ReplicaLog
    source: StorageRoot
    leader_replicas: Callable[[], ReplicaTable]
    on_high_watermarks: Callable[[Mapping[TopicIdPartition, int]], None]
    on_truncated: Callable[[Iterable[TopicIdPartition]], None]
    on_diverged: Callable[[Collection[TopicIdPartition]], None]
    publish: Callable[[str], object]
    gate: Gate
    quotas: FetcherQuotas


class FetchRound:
    """The work of one fetcher; its states say what is to be fetched."""

    def __init__(self, context: FetchContext, states: FetchStates) -> None:
        self._context = context
        self._states = states
        self._source = context.source.child(LOG.name)
        self._matching = LogMatching(
            context.name, states, self._source, context.leader_replicas, context.on_diverged, context.publish
        )
        self._planner = FetchPlanner(context.name, context.spark, self._source, context.config)
        self._copier = SegmentCopier(
            self._source, context.log.root, context.spark, context.config.lakelog_executor_copy_bytes
        )

    def run(self, headers: DataFrame | None) -> bool:
        """Fetches what may be fetched; tells whether there is more to be had at once. `headers` is None where the
        stream has brought none. Raises NoLongerFetched if the broker has stopped to fetch any of it meanwhile."""
        self._context.gate.pass_through()
        self._states.end_delays()
        removals = self._states.removals
        self._delay_broken()
        leaders = self._leaders(removals)
        truncations = self._maybe_truncate(leaders)
        with self._states.held(removals):
            self._carry_out(truncations)
        self._delay_broken()  # a cut may have found a file that cannot be read
        limits = self._throttle(leaders)
        fetchable = {p: s for p, s in self._states.fetchable().items() if p in leaders}
        plan = self._plan(headers, fetchable, leaders, limits)
        copied = self._copier.copy(plan)
        for partition, error in copied.failed.items():
            self._delay(partition, error)
        plan = plan.without(copied.failed)
        self._context.quotas.record(plan.bytes_by_partition())
        followed = {p: leaders[p] for p in plan.log_ends}
        log = self._context.log.current()
        with self._states.held(removals):
            self._carry_out(append_fetched(plan, followed, {p: log.partition(p) for p in followed}), copied)
            return self._settle(plan, fetchable)

    def _leaders(self, removals: int) -> dict[TopicIdPartition, Replica]:
        """The rows of the leaders that have taken up the epoch that we follow.

        One that is slower than we are (UNKNOWN_LEADER_EPOCH) is waited for: its row will move and wake us. Where we are
        the slower ones (FENCED_LEADER_EPOCH), the partition has failed until the metadata tells us more. [FT-14, FM-10]
        """
        table = self._context.leader_replicas()
        table.refresh()
        leaders: dict[TopicIdPartition, Replica] = {}
        with self._states.held(removals):  # NEVER is for the leader epoch that was fetched under
            for partition, state in self._states.all().items():
                row = table.replicas.get(partition)
                error = check_leader_row(row, partition, state.leader_epoch)
                if isinstance(error, FencedLeaderEpochException):
                    self._states.delay(partition, f"{error.name}: {error}", fetch_state.NEVER)
                elif error is None and row is not None:
                    leaders[partition] = row
        return leaders

    def _delay_broken(self) -> None:
        """A partition with a broken file in our own log waits, and no other: soon it is offline. [FT-12, OL-01]"""
        log = self._context.log.refresh()
        for partition in {**self._states.fetchable(), **self._states.truncating()}:
            fault = log.fault(partition)
            if fault is not None:
                self._delay(partition, CorruptRecordException(fault))

    def _maybe_truncate(self, leaders: dict[TopicIdPartition, Replica]) -> list[Step]:
        """The truncations that are due. A partition whose leader's batches cannot be read is delayed, and left out of
        `leaders`."""
        log = self._context.log.refresh()
        logs = {p: log.known(p) for p in leaders}
        self._matching.compare_rows(logs, leaders)
        batches, failed = self._matching.leader_batches(logs, leaders)
        for partition, error in failed.items():
            self._delay(partition, error)
            del leaders[partition]
        for partition in self._matching.without_lost_ends(logs, leaders, batches):
            del leaders[partition]
        return maybe_truncate(self._states.truncating(), self._states.fetchable(), logs, leaders, batches)

    def _plan(
        self, headers: DataFrame | None, fetchable: States, leaders: Replicas, limits: Sequence[ByteLimit]
    ) -> AppendPlan:
        """What to append of the partitions that neither fail nor have diverged."""
        log = self._context.log.refresh()
        ends = {p: log.partition(p).log_end for p in fetchable}
        lagging = {p for p, state in fetchable.items() if state.lagging}
        found = self._planner.plan(headers, ends, lagging, leaders, limits)
        for partition, error in found.failed.items():
            self._delay(partition, error)
        if found.stream_has_gap:
            self._states.fell_behind(p for p in ends if p not in lagging)
        self._matching.diverged(found.plan.diverged)
        vain = set() if found.plan.batches else found.plan.gaps & lagging
        for partition in vain:
            nothing = f"the leader has nothing at offset {ends[partition].offset}"
            self._delay(partition, OffsetOutOfRangeException(nothing))
        return found.plan.without(found.plan.diverged | vain)

    def _throttle(self, leaders: Replicas) -> tuple[ByteLimit, ...]:
        """Delays what a quota holds back, until the snapshot is due; answers what may be taken of the rest. That such a
        row counts for nothing is right: no ISR has it, and no HW must wait for what is slow on purpose. [TH-01]"""
        fetchable = {p: s for p, s in self._states.fetchable().items() if p in leaders}
        lags = {p: leaders[p].high_watermark - s.fetch_offset for p, s in fetchable.items()}
        found = self._context.quotas.throttle(lags)
        for partition, seconds in found.left_out.items():
            self._states.delay(partition, None, seconds * 1000)
        return found.limits

    def _carry_out(self, steps: Iterable[Step], copied: Copied | None = None) -> None:
        """Carries out steps in their order; the broker may be ended between any two."""
        context = self._context
        for step in steps:
            context.gate.pass_through()
            match step:
                case CutLogs():
                    cut_logs(context.log, step.cuts, context.name)
                case FinishTruncation():
                    log = context.log.current()
                    cut = [partition for partition in step.partitions if log.fault(partition) is None]
                    for partition in cut:
                        self._states.truncated(partition, log.partition(partition).log_end_offset)
                    context.on_truncated(cut)
                case AppendFetched() if copied is not None:
                    self._append(step, copied)
                case AdvanceFetchOffsets():
                    self._advance(step.leader_high_watermarks)
                case RaiseLogStarts():
                    follow_log_starts(context.log, step.starts, context.name)
                case PublishReplicas():
                    context.publish(step.why)
                case _:
                    raise TypeError(f"{type(step).__name__} is not a step of a fetcher")

    def _advance(self, leader_high_watermarks: Mapping[TopicIdPartition, int]) -> None:
        log = self._context.log.current()
        for partition, high_watermark in leader_high_watermarks.items():
            self._states.advanced(partition, log.partition(partition).log_end_offset, high_watermark)
        self._context.on_high_watermarks(leader_high_watermarks)

    def _append(self, step: AppendFetched, copied: Copied) -> None:
        log = self._context.log
        append_as_follower(log, copied.segments, step.plan.starts(), step.leader_epochs, self._context.name)

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

    def delay_all(self, error: Exception) -> None:
        """All partitions wait for a backoff: the fetch as a whole has failed. [FT-06]"""
        for partition in self._states.all():
            self._delay(partition, error)
        self._context.publish("delayed")

    def _delay(self, partition: TopicIdPartition, error: Exception) -> None:
        logger.warning("%s: %s is delayed: %s", self._context.name, partition, error)
        name = error.name if isinstance(error, LakelogException) else type(error).__name__
        self._states.delay(partition, f"{name}: {error}", self._context.config.replica_fetch_backoff_ms)
