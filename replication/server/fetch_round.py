"""What happens in one micro-batch of a follower: look at the leader, cut, plan, copy, commit, tell.

Kafka: `AbstractFetcherThread.doWork` = `maybeTruncate`, then `maybeFetch`; `processPartitionData`. [FT-02, FT-09]

What lies below the replica's log end is skipped; what does not begin at it is a gap, and a gap is closed by reading
the leader's snapshot, which is also how a new or far-behind replica begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from replication.config import Config
from replication.errors import LakelogException, OffsetOutOfRangeException
from replication.frames.fetch_plan import APPEND, GAP, fetch_plan
from replication.protocol.append_plan import AppendPlan, FetchedBatch, plan_appends
from replication.protocol.fetch_state import PartitionFetchState
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.truncation import truncation_offset
from replication.server.fetch_states import FetchStates
from replication.server.segment_copier import Copied, SegmentCopier
from replication.storage.cut import truncate_to
from replication.storage.filesystem import StorageRoot
from replication.storage.log_snapshot import headers_from
from replication.storage.log_state import FOLLOWER, LogState, Role
from replication.storage.replica_log import LogChange, ReplicaLog
from replication.storage.replica_table import LEADER_ROLE, Replica, ReplicaTable
from schemas import FETCH_STATES, LOG, RECORD_BATCHES

logger = logging.getLogger(__name__)
_OPEN_END = 2**63 - 1

Replicas = Mapping[TopicIdPartition, Replica]


@dataclass(frozen=True)
class FetchContext:
    """What a round works on: the follower's log, the leader's root, and whom to tell of progress.

    `on_progress` takes the leader's HW of each partition that was fetched; it publishes the follower's rows.
    """

    spark: SparkSession
    config: Config
    name: str
    log: ReplicaLog
    source: StorageRoot
    leader_replicas: Callable[[], ReplicaTable]
    on_progress: Callable[[Mapping[TopicIdPartition, int]], None]


class FetchRound:
    """The work of one fetcher; its states say what is to be fetched."""

    def __init__(self, context: FetchContext, states: FetchStates) -> None:
        self._context = context
        self._states = states
        self._source = context.source.child(LOG.name)
        self._copier = SegmentCopier(
            self._source, context.log.root, context.spark, context.config.lakelog_executor_copy_bytes
        )

    def run(self, headers: DataFrame | None) -> bool:
        """Fetches what may be fetched; tells whether there is more to be had at once. `headers` is None where the
        stream has brought none."""
        self._states.end_delays()
        leader = self._leader_replicas()
        self._maybe_truncate(leader)
        fetchable = self._fetchable(leader)
        plan = self._plan(headers, fetchable, leader)
        copied = self._copier.copy(plan)
        self._append(plan, copied, fetchable)
        again = self._settle(plan, copied, fetchable)
        self._context.on_progress({p: leader[p].high_watermark for p in fetchable})
        return again

    def _leader_replicas(self) -> Replicas:
        """What the leader says of the partitions that it has taken up under the epoch that we follow.

        Others wait: their leader is slower than we are (UNKNOWN_LEADER_EPOCH) or we are slower than it
        (FENCED_LEADER_EPOCH), and in both cases a row or the metadata will move and wake us. [EP-06, FT-14]
        """
        table = self._context.leader_replicas()
        table.refresh()
        return {
            partition: row
            for partition, row in table.replicas.items()
            if row.role == LEADER_ROLE and self._follows(partition, row.leader_epoch)
        }

    def _follows(self, partition: TopicIdPartition, leader_epoch: int) -> bool:
        state = self._states.get(partition)
        return state is not None and state.leader_epoch == leader_epoch

    def _maybe_truncate(self, leader: Replicas) -> None:
        """Cuts what the leader's history does not have, before anything is fetched. [TR-06, TR-07]"""
        log = self._context.log.refresh()
        cuts: dict[TopicIdPartition, int] = {}
        for partition in (p for p in self._states.truncating() if p in leader):
            own, row = log.partition(partition), leader[partition]
            beyond = own.log_end_offset < row.log_start_offset
            cuts[partition] = 0 if beyond else truncation_offset(own.lineage, own.log_end_offset, row.epochs)
        if not cuts:
            return
        truncate_to(self._context.log, cuts, {"who": self._context.name, "why": "truncate to the leader's lineage"})
        for partition in cuts:
            self._context.log.start_at(partition, leader[partition].log_start_offset)
            self._states.truncated(partition, self._context.log.current().partition(partition).log_end_offset)

    def _fetchable(self, leader: Replicas) -> dict[TopicIdPartition, PartitionFetchState]:
        """Ready partitions whose leader is ready. What the stream brings for others passes by, so they lag."""
        waiting = [p for p in self._states.all() if p not in leader]
        self._states.fell_behind(waiting)
        return {p: s for p, s in self._states.fetchable().items() if p in leader}

    def _plan(
        self, headers: DataFrame | None, fetchable: Mapping[TopicIdPartition, PartitionFetchState], leader: Replicas
    ) -> AppendPlan:
        log = self._context.log.refresh()
        ends = {p: log.partition(p).log_end_offset for p in fetchable}
        rows = headers_from(self._source, {p: ends[p] for p, s in fetchable.items() if s.lagging})
        if rows:
            snapshot = self._frame(rows_table(rows))
            headers = headers.unionByName(snapshot) if headers else snapshot
        if headers is None or not fetchable:
            return AppendPlan(log_end_offsets=ends)
        planned = fetch_plan(headers, self._frame(fetch_states_table(ends, leader))).toArrow().to_pylist()
        gaps = {row["gap"] for row in planned if row["action"] == GAP}
        if gaps:
            logger.warning("%s: %s: the leader's snapshot is read instead", self._context.name, "; ".join(sorted(gaps)))
            self._states.fell_behind(p for p, s in fetchable.items() if not s.lagging)
        batches = (_batch(row) for row in planned if row["action"] == APPEND)
        return plan_appends(batches, ends, self._context.config.replica_fetch_response_max_bytes)

    def _frame(self, table: pa.Table) -> DataFrame:
        return self._context.spark.createDataFrame(table)

    def _append(
        self, plan: AppendPlan, copied: Copied, fetchable: Mapping[TopicIdPartition, PartitionFetchState]
    ) -> None:
        """Commits the copied segments, all or none, if every log still ends where the plan begins. [FT-09, FT-10]"""
        starts = self._starts(plan, copied)
        if not starts:
            return
        names = [segment.name for segment in copied.segments]

        def decide(state: LogState) -> LogChange | None:
            if all(name in state.segments for name in names):
                return None  # our own commit, whose answer was lost
            for partition, start in starts.items():
                log, epoch = state.partition(partition), fetchable[partition].leader_epoch
                if log.role != Role(epoch, FOLLOWER) or log.log_end_offset != start:
                    raise OffsetOutOfRangeException(
                        f"{partition}: fetched from {start} under leader epoch {epoch}, "
                        f"but the log ends at {log.log_end_offset} and has role {log.role}"
                    )
            return LogChange(adds=copied.segments)

        self._context.log.transact({"who": self._context.name, "why": "fetched", "batches": len(plan.ranges)}, decide)

    def _starts(self, plan: AppendPlan, copied: Copied) -> dict[TopicIdPartition, int]:
        starts: dict[TopicIdPartition, int] = {}
        for planned in plan.ranges:
            if planned.batch.partition not in copied.failed:
                starts.setdefault(planned.batch.partition, planned.start)
        return starts

    def _settle(
        self, plan: AppendPlan, copied: Copied, fetchable: Mapping[TopicIdPartition, PartitionFetchState]
    ) -> bool:
        """Moves the states to what the log now has; tells whether a gap is to be closed at once."""
        log = self._context.log.current()
        for partition, error in copied.failed.items():
            self._delay(partition, error)
        for partition, before in fetchable.items():
            if partition in copied.failed:
                continue
            end = log.partition(partition).log_end_offset
            self._states.advanced(partition, end)
            if partition not in plan.gaps and before.lagging:
                self._states.caught_up(partition)
            elif partition in plan.gaps and before.lagging and not plan.ranges:
                self._delay(partition, OffsetOutOfRangeException(f"the leader has nothing at offset {end}"))
            elif partition in plan.gaps:
                self._states.fell_behind([partition])
        return any(s.lagging for p, s in self._states.fetchable().items() if p in fetchable)

    def delay_all(self, error: Exception) -> None:
        """All partitions wait for a backoff: the fetch as a whole has failed. [FT-06]"""
        for partition in self._states.all():
            self._delay(partition, error)
        self._context.on_progress({})

    def _delay(self, partition: TopicIdPartition, error: Exception) -> None:
        logger.warning("%s: %s is delayed: %s", self._context.name, partition, error)
        name = error.name if isinstance(error, LakelogException) else type(error).__name__
        self._states.delay(partition, f"{name}: {error}", self._context.config.replica_fetch_backoff_ms)


def rows_table(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Header rows as a table of `schemas.RECORD_BATCHES`."""
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, RECORD_BATCHES.arrow, strict=True)], RECORD_BATCHES.arrow
    )


def fetch_states_table(log_end_offsets: Mapping[TopicIdPartition, int], leader: Replicas) -> pa.Table:
    """What is wanted, and the leader's lineage as ranges, as a table of `schemas.FETCH_STATES`."""
    rows = [
        {"topic_id": p.topic_id, "partition": p.partition, "fetch_offset": end, "epochs": _ranges(leader[p])}
        for p, end in log_end_offsets.items()
    ]
    return pa.Table.from_pylist(rows, FETCH_STATES.arrow)


def _ranges(row: Replica) -> list[dict[str, int]]:
    ends = [*(entry.start_offset for entry in row.epochs[1:]), _OPEN_END]
    return [{**entry._asdict(), "end_offset": end} for entry, end in zip(row.epochs, ends, strict=True)]


def _batch(row: Mapping[str, Any]) -> FetchedBatch:
    partition = TopicIdPartition(row["topic_id"], row["partition"])
    return FetchedBatch(
        partition, row["base_offset"], row["last_offset"], row["leader_epoch"], row["segment"], row["segment_bytes"]
    )
