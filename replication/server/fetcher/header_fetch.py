"""Finds the batches of a leader's log that a fetch may take: from the stream, and for lagging partitions from the log's
snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from lakelog.replication.frames.fetch_plan import fetch_plan
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_steps import FetchedHeaders, FetchHeaders
from lakelog.replication.server.fetcher.arrow_tables import fetch_states_table, fetched_batches
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_snapshot import batches_from

logger = logging.getLogger(__name__)


class HeaderFetch:
    """Reads the batch headers for one fetcher. `source` is the leader's log. Only the stream's headers need Spark."""

    def __init__(self, name: str, spark: SparkSession, source: StorageRoot) -> None:
        self._name = name
        self._spark = spark
        self._source = source

    def fetch(self, headers: DataFrame | None, step: FetchHeaders) -> FetchedHeaders:
        """Reads what `step` asks for. `headers` has the columns of `schemas.RECORD_BATCHES`; None if there are none.

        Raises KafkaStorageException if the leader's log cannot be read.
        """
        wanted = {p: step.log_ends[p].offset for p in step.lagging}
        snapshot, failed = batches_from(self._source, wanted, step.topics)
        if headers is None or not step.log_ends:
            return FetchedHeaders(snapshot, failed, False)
        streamed, has_gap = self._streamed(headers, step.log_ends)
        return FetchedHeaders([*snapshot, *streamed], failed, has_gap)

    def _streamed(
        self, headers: DataFrame, ends: Mapping[TopicIdPartition, LogEnd]
    ) -> tuple[list[FetchedBatch], bool]:  # fmt: skip
        """The stream's batches that reach their partition's fetch offset, and whether the stream has a gap. [FT-04]"""
        states = self._spark.createDataFrame(fetch_states_table(ends))
        planned = fetch_plan(headers, states).toArrow()
        gaps = sorted({gap for gap in planned["gap"].to_pylist() if gap is not None})
        if gaps:
            logger.warning("%s: %s: the leader's snapshot is read instead", self._name, "; ".join(gaps))
        return fetched_batches(planned), bool(gaps)
