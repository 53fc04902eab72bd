"""Finds the batches of a leader's log that a fetch may take: from the stream, and for lagging partitions from the log's
snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_steps import FetchedHeaders, FetchHeaders
from lakelog.replication.server.executors import ExecutorsFailed, is_local, while_there_are_executors
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_snapshot import batches_from

logger = logging.getLogger(__name__)

# The fields of `FetchedBatch`, in their order.
_BATCH = [*TopicIdPartition._fields, *FetchedBatch._fields[1:]]


class HeaderFetch:
    """Reads the batch headers for one fetcher. `source` is the leader's log. Only the stream's headers need Spark."""

    def __init__(self, name: str, source: StorageRoot) -> None:
        self._name = name
        self._source = source
        self._has_warned = False

    def fetch(self, headers: DataFrame | None, step: FetchHeaders) -> FetchedHeaders:
        """Reads what `step` asks for. `headers` has the columns of `schemas.RECORD_BATCHES`; None if there are none.

        Raises KafkaStorageException if the leader's log cannot be read.
        """
        wanted = {p: step.log_ends[p].offset for p in step.lagging}
        snapshot, failed = batches_from(self._source, wanted, step.topics)
        if headers is None or not step.log_ends:
            return FetchedHeaders(snapshot, failed, False)
        streamed = self._collected(headers)
        if streamed is None:
            return FetchedHeaders(snapshot, failed, True)
        gaps = sorted(streamed["gap"].drop_null().unique().to_pylist())
        if gaps:
            logger.warning("%s: %s: the leader's snapshot is read instead", self._name, "; ".join(gaps))
        return FetchedHeaders([*snapshot, *fetched_batches(streamed, step.log_ends)], failed, bool(gaps))

    def _collected(self, headers: DataFrame) -> pa.Table | None:
        """The rows of a micro-batch; None if Spark has no executor to bring them, and a replica must not wait."""
        if is_local(headers.sparkSession):
            return headers.toArrow()
        try:
            rows = while_there_are_executors(headers.sparkSession, headers.toArrow)
        except ExecutorsFailed as error:
            if not self._has_warned:
                logger.warning("%s: %s: the leader's snapshot is read instead", self._name, error)
            self._has_warned = True
            return None
        self._has_warned = False
        return rows


def fetched_batches(headers: pa.Table, log_ends: Mapping[TopicIdPartition, LogEnd]) -> list[FetchedBatch]:
    """Joins headers with the follower's log ends: the batches of the partitions that it fetches, without those that its
    log has whole. `headers` has the columns of `schemas.RECORD_BATCHES`; its gaps are no batches.

    A join in the JVM would cost more than the rest of a micro-batch, because the headers are few. [FT-04]
    """
    columns = headers.select(_BATCH).to_pydict().values()
    batches = (FetchedBatch(TopicIdPartition(*row[:2]), *row[2:]) for row in zip(*columns, strict=True))
    fetched = (batch for batch in batches if batch.topic_id_partition in log_ends)
    return [batch for batch in fetched if batch.last_offset >= log_ends[batch.topic_id_partition].offset]
