"""Reads committed records as a DataFrame, like Spark's Kafka source in batch mode. [FE-01]"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.replication.clients.arguments import spark_session_of, text
from lakelog.replication.clients.committed_range import (
    EARLIEST,
    LATEST,
    Offsets,
    check_offsets,
    check_partitions,
    committed_range,
)
from lakelog.replication.clients.partition_reader import OpenPartition, PartitionReader
from lakelog.replication.clients.purgatory import until_available
from lakelog.replication.clients.spark_worker import keep_imports
from lakelog.replication.clients.topic_view import TopicView, forget_view, open_view
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    InvalidPartitionsException,
    LakelogException,
    OffsetOutOfRangeException,
)
from lakelog.replication.frames.expressions import committed_records
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import OffsetRange, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.segment import Segment, read_records, rows_of, size_fault
from lakelog.schemas import LOG

Bounds: TypeAlias = Mapping[TopicIdPartition, OffsetRange]

_TASKS_A_CORE = 4
_FEW = 50  # partitions
_PATHS = 32  # Spark's spark.sql.sources.parallelPartitionDiscovery.threshold
# The session's settings would let Spark leave out files that are missing or broken, or take timestamps before 1900 for
# those of another calendar.
_ALL_AS_WRITTEN = {
    "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "datetimeRebaseMode": "CORRECTED",
    "__globPaths__": "false",
}  # fmt: skip
_PATTERN = frozenset("{}[]*?\\")  # Spark: SparkHadoopUtil.isGlobPath
_BOUNDS = "topic_id string, partition int, starting_offset bigint, ending_offset bigint"
_WANTED = f"segment string, {_BOUNDS}"


def read_committed(
    spark: SparkSession,
    cluster_uri: str,
    topic: str,
    starting: Offsets = EARLIEST,
    ending: Offsets = LATEST,
    config: Config | None = None,
) -> DataFrame:
    """A DataFrame of a topic's committed records, with the columns of Spark's Kafka source, `leader_epoch` and
    `topic_id`.

    Committed records are those below the high watermark at the time of the call. `starting` and `ending` (excluded) are
    "earliest", "latest" (the HW) or an offset for each partition: `{0: 100, 1: 250}`. A partition that is not in the
    mapping is read from its log start, or up to its HW. Spark reads the data files of local logs, and pyarrow those in
    an object store, so neither needs a jar.

    Raises InvalidRequestException (an argument of a wrong type), UnknownTopicOrPartitionException,
    InvalidPartitionsException (no such partition),
    LeaderNotAvailableException, NotLeaderOrFollowerException (a leader changed meanwhile), OffsetOutOfRangeException,
    CorruptRecordException (a data file is missing or short), KafkaStorageException, InconsistentClusterIdException (an
    emptied root), BrokerNotAvailableException, and OffsetNotAvailableException (a new leader does not know its HW
    within `request.timeout.ms`, KIP-207).
    """
    spark_session_of(spark)
    for name, given in (("starting", starting), ("ending", ending)):
        check_offsets(given, name)
    view = open_view(text(cluster_uri, "cluster_uri"), Config.of(config), reads_go_on=True)
    deadline = time.monotonic() + view.cluster.config.request_timeout_ms / 1000
    poll_interval_ms = view.cluster.config.lakelog_poll_interval_ms
    try:
        return until_available(lambda: _read(spark, view, topic, starting, ending), deadline, poll_interval_ms)
    except LakelogException as error:
        forget_view(view)
        if isinstance(error, InvalidPartitionsException | OffsetOutOfRangeException):
            view.cluster.check_current()
        raise


def read_latest(spark: SparkSession, cluster_uri: str, topic: str, config: Config | None = None) -> DataFrame:
    """A keyed topic as a table: the newest committed record of each key, with the columns of `read_committed`.

    A key whose newest record has no value (a tombstone) has no row, and neither have records without a key. If a key
    has records in several partitions, because partitions were added, its newest record is that with the latest
    timestamp. The topic need not be compacted. Raises as `read_committed`.

    Kafka Streams: `KTable`.
    """
    records = read_committed(spark, cluster_uri, topic, config=config).where("key IS NOT NULL")
    whole = F.struct(*records.columns)
    of_partition = records.groupBy("partition", "key").agg(F.max_by(whole, "offset").alias("newest"))
    order = F.struct("newest.timestamp", "newest.partition")
    newest = of_partition.groupBy("key").agg(F.max_by("newest", order).alias("newest")).select("newest.*")
    return newest.where("value IS NOT NULL")


def _read(spark: SparkSession, view: TopicView, topic: str, starting: Offsets, ending: Offsets) -> DataFrame:
    partitions = view.partitions(topic)
    check_partitions(topic, partitions, starting, ending)
    by_leader: dict[int, list[PartitionRegistration]] = {}
    for registration in partitions.values():
        by_leader.setdefault(registration.leader, []).append(registration)
    reader = PartitionReader(view)
    reads = [_read_leader(reader, led, starting, ending) for _, led in sorted(by_leader.items())]
    return committed_segments(spark, reads)


class LogRead(NamedTuple):
    """The records of some partitions within their bounds, in the log in `root`."""

    root: StorageRoot
    state: LogState
    bounds: Bounds

    def partitions_by_segment(self) -> dict[str, list[TopicIdPartition]]:
        """The names of the segments that have these records, and the partitions that are wanted of each."""
        found: dict[str, list[TopicIdPartition]] = {}
        for key, offsets in self.bounds.items():
            for segment in self.state.segments_with(key, offsets):
                found.setdefault(segment.name, []).append(key)
        return dict(sorted(found.items()))


def _read_leader(reader: PartitionReader, led: list[PartitionRegistration], *offsets: Offsets) -> LogRead:
    bounds: dict[TopicIdPartition, OffsetRange] = {}
    for registration in led:
        opened = reader.leader(registration)
        chosen = bounds[registration.topic_id_partition] = committed_range(opened, *offsets)
        _check_files(opened, chosen)
    return LogRead(opened.root, opened.state, bounds)


def _check_files(opened: OpenPartition, offsets: OffsetRange) -> None:
    """Raises CorruptRecordException, naming the file, for a missing or short file. Spark would raise a stack trace."""
    files = [segment.file for segment in opened.segments(offsets)]
    for file, size in zip(files, opened.root.sizes([file.name for file in files]), strict=True):
        fault = size_fault(opened.root, file, size)
        if fault:
            raise CorruptRecordException(fault)


def committed_segments(spark: SparkSession, reads: Sequence[LogRead]) -> DataFrame:
    """The records of these partitions, each from one log. Columns: `schemas.LOG`."""
    by_pyarrow = [read for read in reads if not _can_scan(read.root)]
    frames = [segment_records(spark, read) for read in by_pyarrow]
    frames += _scans(spark, [_LocalRead.of(read) for read in reads if _can_scan(read.root)])
    return reduce(DataFrame.unionAll, frames) if frames else spark.createDataFrame([], LOG.types)


def _can_scan(root: StorageRoot) -> bool:
    """Whether Spark itself can read files below a root: it is local, and its path is no pattern to Spark.

    Even with `__globPaths__` off, Spark would take all paths of a read for each one that has a pattern's characters,
    and so double records. With its characters escaped it cannot read a path that also has a colon.
    """
    return root.is_local and _PATTERN.isdisjoint(root.spark_uri)


class _LocalRead(NamedTuple):
    """The paths of the segments that are wanted as a whole and in part, and of the latter: the bounds of the partitions
    that are wanted, and all partitions that they have."""

    whole: list[str]
    partly: list[str]
    bounds: Bounds
    there: set[TopicIdPartition]

    @classmethod
    def of(cls, read: LogRead) -> _LocalRead:
        partitions = read.partitions_by_segment()
        is_whole = {name: _is_within(read.state.segments[name], read.bounds) for name in partitions}
        wanted = {key for name, keys in partitions.items() if not is_whole[name] for key in keys}
        whole, partly = ([name for name in is_whole if is_whole[name] is kind] for kind in (True, False))
        there = {header.topic_id_partition for name in partly for header in read.state.segments[name].headers}
        bounds = {key: read.bounds[key] for key in wanted}
        return cls(_paths(read.root, whole), _paths(read.root, partly), bounds, there)


def _scans(spark: SparkSession, reads: Sequence[_LocalRead]) -> list[DataFrame]:
    """Frames over the segments of local logs: as few as can be, because Spark plans each scan anew."""
    frames = _parquet(spark, [path for read in reads for path in read.whole])
    parts = [(read.bounds, read.partly) for read in reads]
    together = {key: found for read in reads for key, found in read.bounds.items()}
    are_few = sum(len(read.bounds) for read in reads) == len(together) <= _FEW  # and none is in two logs
    if are_few and all(read.there & together.keys() == read.bounds.keys() for read in reads):
        parts = [(together, [path for read in reads for path in read.partly])]
    return frames + [_within(spark, frame, bounds) for bounds, paths in parts for frame in _parquet(spark, paths)]


def _within(spark: SparkSession, records: DataFrame, bounds: Bounds) -> DataFrame:
    """The records within the bounds. Spark skips pages by a condition on few partitions. For many it would plan for
    long: then it joins the bounds, and skips pages by the lowest start.

    Spark parses the ranges of a topic as one text: a column object for each bound took longer than the read.
    """
    if len(bounds) <= _FEW:
        ranges: dict[str, list[str]] = {}
        for key, (start, stop) in bounds.items():
            text = f"(`partition` = {key.partition} AND `offset` >= {start} AND `offset` < {stop})"
            ranges.setdefault(key.topic_id, []).append(text)
        topics = [(F.col("topic_id") == topic) & F.expr(" OR ".join(texts)) for topic, texts in ranges.items()]
        return records.where(reduce(or_, topics))
    within = spark.createDataFrame([(*key, *found) for key, found in sorted(bounds.items())], _BOUNDS)
    return committed_records(records.where(f"`offset` >= {min(start for start, _ in bounds.values())}"), within)


def _is_within(segment: Segment, bounds: Bounds) -> bool:
    """Whether all records of a segment are wanted, so that Spark need not compare their offsets."""
    nothing = OffsetRange(0, 0)
    wanted = ((header, bounds.get(header.topic_id_partition, nothing)) for header in segment.headers)
    return all(start <= header.base_offset and header.next_offset <= stop for header, (start, stop) in wanted)


def _paths(root: StorageRoot, names: Sequence[str]) -> list[str]:
    return [f"{root.spark_uri}/{name}" for name in names]


def _parquet(spark: SparkSession, paths: Sequence[str]) -> list[DataFrame]:
    """Frames over these segments. Each has few, because Spark lists many paths by a job."""
    some = (paths[first : first + _PATHS] for first in range(0, len(paths), _PATHS))
    return [spark.read.schema(LOG.types).options(**_ALL_AS_WRITTEN).parquet(*each) for each in some]


def segment_records(spark: SparkSession, read: LogRead) -> DataFrame:
    """The records of a log. Columns: `schemas.LOG`. Tasks of Spark read each segment once, as a whole.

    The tasks get the root's options, so that executors need no credentials of their own.
    """
    partitions = read.partitions_by_segment()
    tasks = max(1, min(len(partitions), spark.sparkContext.defaultParallelism * _TASKS_A_CORE))
    wanted = [(name, *key, *read.bounds[key]) for name, keys in partitions.items() for key in keys]
    rows = spark.createDataFrame(wanted, _WANTED).repartition(tasks, "segment")
    return rows.sortWithinPartitions("segment").mapInArrow(_reader(read.root), LOG.types)


def _reader(root: StorageRoot) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        name, records = "", LOG.arrow.empty_table()
        for row in (row for batch in given for row in batch.to_pylist()):
            if row["segment"] != name:
                name, records = row["segment"], read_records(root, row["segment"])
            key = TopicIdPartition(row["topic_id"], row["partition"])
            yield from rows_of(records, key, row["starting_offset"], row["ending_offset"]).to_batches()

    return read
