"""Large sends: each Spark task writes the segments of whole partitions, and the driver commits them."""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakelog.replication.clients.record_limit import RecordLimit, record_sizes
from lakelog.replication.clients.records import check_partitions, partitions_of, split, to_records
from lakelog.replication.errors import InvalidRecordException, LakelogException
from lakelog.replication.protocol.append import PartitionAppend
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import Positions, SegmentWriter
from lakelog.replication.storage.log.new_batches import DATA_COLUMNS, ArrowRecords, digests_of, segment_writer
from lakelog.replication.storage.log.segment import Segment

_PARTITIONED = (
    "key binary, value binary, timestamp timestamp_ltz, headers array<struct<key:string,value:binary>>, partition int, "
    "run int, bytes bigint"
)
_PACKED = "written binary"


def arrow_schema(records: DataFrame) -> pa.Schema:
    """The Arrow schema of a DataFrame, without running it."""
    return records.limit(0).toArrow().schema


class SparkRecordSet:
    """The records of a DataFrame, persisted during the send: a non-deterministic DataFrame could otherwise give other
    records when they are written than when they were counted.

    Each record has a `place`, so every write of a partition has the same order. A retry can then append the rest of a
    send if the log already has its first records. If Spark loses an executor it computes its records again, under
    another `run` number. The send fails if it had already written some of the first run.
    """

    nbytes = 0  # Spark keeps them

    def __init__(
        self, topic: str, records: DataFrame, partitions: int, sticky: int, segment_bytes: int,
        limit: RecordLimit | None = None,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._segment_bytes = segment_bytes
        self._runs: dict[int, int] = {}
        assign = _AssignPartitions(topic, partitions, sticky, time.time_ns() // 1000)
        placed = records.mapInArrow(assign, _PARTITIONED).withColumn("place", F.monotonically_increasing_id())
        self._records = placed.persist(StorageLevel.MEMORY_AND_DISK)
        found = self._records.groupBy("partition").agg(
            F.count("*").alias("count"), F.max("bytes").alias("largest"), F.count("key").alias("keys")
        )
        rows = found.collect()
        self.counts: Mapping[int, int] = {row["partition"]: row["count"] for row in rows}
        try:
            check_partitions(topic, self.counts, partitions)
            if limit is not None:
                for row in rows:
                    limit.check(row["largest"], row["partition"])
                    limit.check_has_key(row["keys"] == row["count"], row["partition"])
        except LakelogException:
            self._records.unpersist()
            raise

    def __enter__(self) -> SparkRecordSet:
        return self

    def __exit__(self, *error: object) -> None:
        self._records.unpersist()

    def writer(self, root: StorageRoot, leader: int, requests: Sequence[PartitionAppend]) -> SegmentWriter:
        """Writes on the executors. One task has all records of a partition, sorted by partition and place."""

        def write(positions: Positions) -> list[Segment]:
            todo = [request for request in requests if request.topic_id_partition in positions]
            job = _WriteSegments(root, leader, tuple(todo), dict(positions), self._segment_bytes)
            numbers = [request.partition for request in todo]
            ours = self._records.where(F.col("partition").isin(numbers))
            sorted_records = ours.repartition(len(numbers), "partition").sortWithinPartitions("partition", "place")
            rows = sorted_records.mapInArrow(job, _PACKED).collect()
            written: list[_Written] = [pickle.loads(bytes(row["written"])) for row in rows]
            self._check(numbers, {number: read for task in written for number, read in task.reads.items()})
            return [segment for task in written for segment in task.segments]

        return write

    def digests(self, partition: TopicIdPartition, parts: Sequence[range]) -> Sequence[str]:
        """The digests of parts of a partition's records, computed by one task as in `writer`."""
        number = partition.partition
        ours = self._records.where(F.col("partition") == number)
        job = _Digests(tuple(parts))
        (row,) = ours.repartition(1).sortWithinPartitions("partition", "place").mapInArrow(job, _PACKED).collect()
        read, found = pickle.loads(bytes(row["written"]))
        self._check([number], {number: read})
        return list[str](found)

    def _check(self, numbers: Sequence[int], reads: Mapping[int, _Read]) -> None:
        """Raises InvalidRecordException unless the tasks read as many records as were counted, from the same runs as
        the first write."""
        for number in numbers:
            read = reads.get(number, _Read(0, 0))
            if read.records != self.counts[number]:
                changed = f"{self.counts[number]} were counted, {read.records} reached the writer"
            elif self._runs.setdefault(number, read.runs) != read.runs:
                changed = "Spark has run the DataFrame again after a part of it was written"
            else:
                continue
            raise InvalidRecordException(f"{self._topic}-{number}: records changed while they were sent: {changed}")


@dataclass(frozen=True)
class _AssignPartitions:
    topic: str
    partitions: int
    sticky: int
    now: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        run = secrets.randbits(31)
        for batch in batches:
            table = pa.Table.from_batches([batch])
            records = to_records(table, self.now, self.topic)
            numbers = partitions_of(table, records, self.topic, self.partitions, self.sticky)
            runs = pa.repeat(pa.scalar(run, pa.int32()), len(records))
            placed = records.append_column("partition", numbers).append_column("run", runs)
            yield from placed.append_column("bytes", record_sizes(records)).to_batches()


class _Read(NamedTuple):
    """The number of records that a task read of a partition, and the sum of their run numbers."""

    records: int
    runs: int


class _Written(NamedTuple):
    """The result of a task: its reads by partition, and the segments that it wrote."""

    reads: Mapping[int, _Read]
    segments: Sequence[Segment]


@dataclass(frozen=True)
class _Digests:
    parts: tuple[range, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        table = pa.Table.from_batches(received)
        read = _Read(table.num_rows, pc.sum(table["run"]).as_py())
        found = read, digests_of([ArrowRecords(table)], self.parts)
        yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(found)]})


@dataclass(frozen=True)
class _WriteSegments:
    root: StorageRoot
    leader: int
    requests: tuple[PartitionAppend, ...]
    positions: Positions
    segment_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        table = pa.Table.from_batches(received)
        parts = split(table, table["partition"])
        reads = {number: _Read(part.num_rows, pc.sum(part["run"]).as_py()) for number, part in parts.items()}
        mine = [request for request in self.requests if request.partition in parts]
        records = {
            request.topic_id_partition: [ArrowRecords(parts[request.partition].select(DATA_COLUMNS))]
            for request in mine
        }
        positions = {request.topic_id_partition: self.positions[request.topic_id_partition] for request in mine}
        segments = segment_writer(self.root, self.leader, mine, records, self.segment_bytes)(positions)
        yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(_Written(reads, segments))]})
