"""Large sends: Spark tasks write the segments, each task those of whole partitions; the driver commits them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from replication.clients.record_set import RecordSet
from replication.clients.records import partitions_of, split, to_records
from replication.errors import InvalidPartitionsException, KafkaStorageException
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.append import PartitionAppend, SegmentWriter, arrow_writer
from replication.storage.filesystem import StorageRoot
from replication.storage.segment import Segment

_PARTITIONED = (
    "key binary, value binary, timestamp timestamp, headers array<struct<key:string,value:binary>>, partition int"
)
_PACKED = "partition int, segment binary"


def arrow_schema(records: DataFrame) -> pa.Schema:
    """The Arrow schema of a DataFrame, without running it."""
    return records.limit(0).toArrow().schema


class SparkRecordSet:
    """Records of a DataFrame. They are kept while they are sent: one that answers differently each time it is run
    would else be counted as one thing and written as another."""

    def __init__(self, topic: str, records: DataFrame, partitions: int, sticky: int, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        assign = _AssignPartitions(topic, partitions, sticky, time.time_ns() // 1000)
        self._records = records.mapInArrow(assign, _PARTITIONED).persist(StorageLevel.MEMORY_AND_DISK)
        self.counts: Mapping[int, int] = {
            row["partition"]: row["count"] for row in self._records.groupBy("partition").count().collect()
        }
        outside = [partition for partition in self.counts if not 0 <= partition < partitions]
        if outside:
            self._records.unpersist()
            raise InvalidPartitionsException(
                f"records for topic {topic}: partition {outside[0]} is out of range, it has 0 to {partitions - 1}"
            )

    def __enter__(self) -> RecordSet:
        return self

    def __exit__(self, *error: object) -> None:
        self._records.unpersist()

    def writer(self, root: StorageRoot, leader: int, requests: Sequence[PartitionAppend]) -> SegmentWriter:
        """Writes on the executors: a partition's records are all in one task, sorted by partition."""

        def write(bases: Mapping[TopicIdPartition, int]) -> list[Segment]:
            todo = [request for request in requests if request.topic_id_partition in bases]
            job = _WriteSegments(root, leader, tuple(todo), dict(bases), self._segment_bytes)
            numbers = [request.partition for request in todo]
            ours = self._records.where(F.col("partition").isin(numbers))
            packed = ours.repartition(len(numbers), "partition").sortWithinPartitions("partition")
            rows = packed.mapInArrow(job, _PACKED).collect()
            segments = [pickle.loads(bytes(row["segment"])) for row in rows]
            self._check(todo, segments)
            return segments

        return write

    def _check(self, requests: Sequence[PartitionAppend], segments: Sequence[Segment]) -> None:
        written = dict.fromkeys((request.partition for request in requests), 0)
        for header in (header for segment in segments for header in segment.headers):
            written[header.partition] += header.records
        counted = {partition: self.counts[partition] for partition in written}
        if written != counted:
            raise KafkaStorageException(f"records changed while they were sent: counted {counted}, written {written}")


@dataclass(frozen=True)
class _AssignPartitions:
    topic: str
    partitions: int
    sticky: int
    now: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            records = to_records(table, self.now)
            numbers = partitions_of(table, records, self.topic, self.partitions, self.sticky)
            yield from records.append_column("partition", numbers).to_batches()


@dataclass(frozen=True)
class _WriteSegments:
    root: StorageRoot
    leader: int
    requests: tuple[PartitionAppend, ...]
    bases: Mapping[TopicIdPartition, int]
    segment_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        table = pa.Table.from_batches(received)
        parts = split(table.drop_columns(["partition"]), table["partition"])
        mine = [request for request in self.requests if request.partition in parts]
        records = {request.topic_id_partition: parts[request.partition] for request in mine}
        bases = {request.topic_id_partition: self.bases[request.topic_id_partition] for request in mine}
        for segment in arrow_writer(self.root, self.leader, mine, records, self.segment_bytes)(bases):
            packed = {"partition": [segment.headers[0].partition], "segment": [pickle.dumps(segment)]}
            yield pa.RecordBatch.from_pydict(packed, pa.schema([("partition", pa.int32()), ("segment", pa.binary())]))
