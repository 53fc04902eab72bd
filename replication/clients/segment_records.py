"""Records of a log as a DataFrame, read by pyarrow. Spark needs no jar and no settings for the store. [FE-01]"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.segment import read_records, rows_of
from lakelog.schemas import LOG

_TASKS_A_CORE = 4
_RANGE = "segment string, topic_id string, partition int, starting_offset bigint, ending_offset bigint"


class SegmentRange(NamedTuple):
    """The records of a partition in a segment from one offset to before another one."""

    segment: str
    topic_id: str
    partition: int
    starting_offset: int
    ending_offset: int


def segment_ranges(state: LogState, bounds: Mapping[TopicIdPartition, tuple[int, int]]) -> list[SegmentRange]:
    """What to read of which segments for the records of partitions from one offset to before another one; the ranges of
    a segment follow one another."""
    found = []
    for key, (start, stop) in bounds.items():
        needed = (b for b in state.partition(key).batches if b.header.next_offset > start and b.base_offset < stop)
        segments = dict.fromkeys(batch.segment for batch in needed)
        found += [SegmentRange(segment, key.topic_id, key.partition, start, stop) for segment in segments]
    return sorted(found)


def segment_records(spark: SparkSession, root: StorageRoot, ranges: Sequence[SegmentRange]) -> DataFrame:
    """The records of these ranges of the log in `root`. Columns: `schemas.LOG`. Tasks of Spark read each segment once.

    The tasks get the root's options, so that executors need no credentials of their own.
    """
    segments = {each.segment for each in ranges}
    tasks = max(1, min(len(segments), spark.sparkContext.defaultParallelism * _TASKS_A_CORE))
    rows = spark.createDataFrame(list(ranges), _RANGE).repartition(tasks, "segment")
    return rows.sortWithinPartitions("segment").mapInArrow(_reader(root), LOG.types)


def _reader(root: StorageRoot) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name, records = "", LOG.arrow.empty_table()
        for row in (row for batch in given for row in batch.to_pylist()):
            found = SegmentRange(**row)
            if found.segment != name:
                name, records = found.segment, read_records(root, found.segment)
            key = TopicIdPartition(found.topic_id, found.partition)
            yield from rows_of(records, key, found.starting_offset, found.ending_offset).to_batches()

    return read
