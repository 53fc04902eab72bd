"""Which batches a fetch appends: those of the stream, and of partitions that lag those of the leader's log."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from replication.config import Config
from replication.errors import CorruptRecordException
from replication.frames.fetch_plan import APPEND, GAP, fetch_plan
from replication.protocol.append_plan import AppendPlan, ByteLimit, FetchedBatch, plan_appends
from replication.protocol.follow import may_append
from replication.protocol.record_batch import LogEnd, TopicIdPartition
from replication.protocol.replica import Replica
from replication.server.fetch_tables import fetch_states_table, fetched_batch
from replication.storage.filesystem import StorageRoot
from replication.storage.log_snapshot import headers_from
from schemas import RECORD_BATCHES

logger = logging.getLogger(__name__)

LogEnds = Mapping[TopicIdPartition, LogEnd]
Leaders = Mapping[TopicIdPartition, Replica]


class PlannedFetch(NamedTuple):
    """A plan, the partitions that a broken segment keeps out of it, and whether the stream has left commits out."""

    plan: AppendPlan
    failed: Mapping[TopicIdPartition, CorruptRecordException]
    stream_has_gap: bool


class FetchPlanner:
    """Plans the fetches of one fetcher. `source` is the leader's log; Spark is asked only for what a stream brings."""

    def __init__(self, name: str, spark: SparkSession, source: StorageRoot, config: Config) -> None:
        self._name = name
        self._spark = spark
        self._source = source
        self._bounds = config.replica_fetch_response_max_bytes, config.replica_fetch_max_bytes

    def plan(
        self, headers: DataFrame | None, ends: LogEnds, lagging: Collection[TopicIdPartition], leaders: Leaders,
        limits: Sequence[ByteLimit],
    ) -> PlannedFetch:  # fmt: skip
        """What follows the log ends. `headers` is None where the stream has brought none.

        Raises KafkaStorageException when the leader's log cannot be read.
        """
        snapshot, failed = self._snapshot({p: ends[p].offset for p in lagging}, leaders)
        sound = {p: end for p, end in ends.items() if p not in failed}
        kept = [b for b in snapshot if may_append(b, leaders[b.partition], sound[b.partition].offset)]
        streamed, has_gap = self._streamed(headers, sound, leaders) if headers is not None and sound else ([], False)
        return PlannedFetch(plan_appends([*kept, *streamed], sound, *self._bounds, limits), failed, has_gap)

    def _snapshot(
        self, wanted: Mapping[TopicIdPartition, int], leaders: Leaders
    ) -> tuple[list[FetchedBatch], Mapping[TopicIdPartition, CorruptRecordException]]:
        rows, failed = headers_from(self._source, wanted, {p: leaders[p].topic for p in wanted})
        return [fetched_batch(dict(zip(RECORD_BATCHES.names, row, strict=True))) for row in rows], failed

    def _streamed(
        self, headers: DataFrame, ends: LogEnds, leaders: Leaders
    ) -> tuple[list[FetchedBatch], bool]:  # fmt: skip
        """The headers of the stream, joined with what is to be fetched. [FT-04]"""
        states = self._spark.createDataFrame(fetch_states_table(ends, leaders))
        planned = fetch_plan(headers, states).toArrow().to_pylist()
        gaps = sorted({row["gap"] for row in planned if row["action"] == GAP})
        if gaps:
            logger.warning("%s: %s: the leader's snapshot is read instead", self._name, "; ".join(gaps))
        return [fetched_batch(row) for row in planned if row["action"] == APPEND], bool(gaps)
