"""The records of one send: an Arrow table in this process, or those of a DataFrame, which Spark's tasks have staged.

A `RecordSet` has the records of each partition as `NewRecords`. An append splits these into record batches, each of
which is a `Piece` of a new segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

import pyarrow as pa

from lakelog.replication.clients.record_limit import RecordLimit
from lakelog.replication.clients.records import (
    PythonRecord,
    check_columns,
    check_partitions,
    partitions_of,
    python_records,
    random_partition,
    split,
    to_records,
)
from lakelog.replication.errors import InvalidRecordException, error_or
from lakelog.replication.protocol.append import PartitionAppend
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import Positions
from lakelog.replication.storage.log.new_batches import (
    ArrowRecords,
    NewRecords,
    digests_of,
    write_batches,
)
from lakelog.replication.storage.log.segment import Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Records: TypeAlias = Union["DataFrame", pa.Table, "PartitionedRecords", Sequence[PythonRecord], PythonRecord]

# Joined records are copied if their parts are smaller than this on average: many chunks cost more than a copy.
_SMALL_BYTES = 64 * 1024


@dataclass(frozen=True)
class PartitionedRecords:
    """The records of a sink, by partition. The sink's tasks have checked the records, assigned the partitions, and
    encoded large batches."""

    by_partition: Mapping[int, Sequence[NewRecords]]


class RecordSet(Protocol):
    """The records of a send, by partition. Use it in a `with` block."""

    counts: Mapping[int, int]  # the number of records of each partition
    nbytes: int  # in the memory of this process

    def write(
        self, root: StorageRoot, leader: int, requests: Sequence[PartitionAppend], positions: Positions
    ) -> Sequence[Segment]:  # fmt: skip
        """Writes the records of those of these partitions that have a position into new segments of the log at `root`,
        uncommitted. If positions have moved, it writes the same records again."""

    def digests(self, partition: TopicIdPartition, parts: Sequence[range]) -> Sequence[str]:
        """The digests of parts of a partition's records. A part is a range of them, counted from 0."""

    def __enter__(self) -> RecordSet:
        """Returns the set."""

    def __exit__(self, *error: object) -> None:
        """Releases the memory of the records."""


def record_set(
    topic: str, records: Records, partitions: int, segment_bytes: int, limit: RecordLimit | None = None,
    roots: Callable[[], Mapping[int, StorageRoot]] = dict,
) -> RecordSet:  # fmt: skip
    """The records of a send for a topic with this number of partitions.

    `records`: a DataFrame, a pyarrow.Table, PartitionedRecords, or a dict, str or bytes, or a list of these.
    `segment_bytes`: the size of a segment. `limit`: of the size of each record; None for no check. PartitionedRecords
    are not checked again. `roots`: the folder of a log for each partition, for a large DataFrame.

    Raises InvalidRecordException for a wrong column or value, InvalidPartitionsException for a partition that does not
    exist, RecordTooLargeException, and for a large DataFrame the error of `roots`.
    """
    sticky = random_partition(partitions)
    if isinstance(records, Sequence | Mapping):
        records = python_records(records, topic)
    if isinstance(records, pa.Table):
        return ArrowRecordSet(topic, records, partitions, sticky, segment_bytes, limit)
    if isinstance(records, PartitionedRecords):
        check_partitions(topic, records.by_partition, partitions)
        return LocalRecordSet(records.by_partition, segment_bytes)
    if not hasattr(records, "mapInArrow"):
        kind = f"{type(records).__module__}.{type(records).__qualname__}"
        raise InvalidRecordException(
            f"records for topic {topic} are a {kind}, they must be a DataFrame of Spark, a pyarrow.Table or a list of "
            "dicts"
        )
    from pyspark.sql.pandas.types import to_arrow_schema  # imported late: a producer does not need Spark

    from lakelog.replication.clients.spark_record_set import run_data_frame

    check_columns(to_arrow_schema(records.schema, timezone="UTC"), topic)
    found = run_data_frame(topic, records, partitions, sticky, segment_bytes, error_or(roots), limit)
    if isinstance(found, pa.Table):
        return ArrowRecordSet(topic, found, partitions, sticky, segment_bytes, limit)
    return found


class LocalRecordSet:
    """Records that this process has: those of each partition, in one or several parts. Those of a sink, whose tasks
    have prepared them, need no more; `ArrowRecordSet` makes them of a table."""

    def __init__(self, by_partition: Mapping[int, Sequence[NewRecords]], segment_bytes: int) -> None:
        self._by_partition, self._segment_bytes = by_partition, segment_bytes
        self.counts: Mapping[int, int] = {
            partition: sum(part.num_rows for part in parts) for partition, parts in by_partition.items()
        }
        self.nbytes = sum(part.nbytes for parts in by_partition.values() for part in parts)

    def __enter__(self) -> RecordSet:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def write(
        self, root: StorageRoot, leader: int, requests: Sequence[PartitionAppend], positions: Positions
    ) -> Sequence[Segment]:  # fmt: skip
        """Writes in this process."""
        records = {request.topic_id_partition: self._by_partition[request.partition] for request in requests}
        return write_batches(root, leader, requests, records, self._segment_bytes, positions)

    def digests(self, partition: TopicIdPartition, parts: Sequence[range]) -> Sequence[str]:
        """The digests of parts of a partition's records."""
        return digests_of(self._by_partition[partition.partition], parts)


class ArrowRecordSet(LocalRecordSet):
    """The records of a table or a small DataFrame."""

    def __init__(
        self, topic: str, table: pa.Table, partitions: int, sticky: int, segment_bytes: int,
        limit: RecordLimit | None = None,
    ) -> None:  # fmt: skip
        check_columns(table.schema, topic)
        records = to_records(table, topic=topic)
        numbers = partitions_of(table, records, topic, partitions, sticky)
        if limit is not None:
            limit.check_records(records, numbers)
        parts = {partition: [ArrowRecords(part)] for partition, part in split(records, numbers).items()}
        super().__init__(parts, segment_bytes)
        self.nbytes = records.nbytes

    @property
    def partition_bytes(self) -> Mapping[int, int]:
        """The bytes of each partition's records."""
        return {partition: records.nbytes for partition, (records,) in self._by_partition.items()}

    @classmethod
    def joined(cls, sets: Sequence[ArrowRecordSet]) -> ArrowRecordSet:
        """The records of several sends to one topic as one set. Each partition has them in the order of the sends."""
        tables: dict[int, list[pa.Table]] = {}
        for each in sets:
            for partition, (records,) in each._by_partition.items():
                tables.setdefault(partition, []).append(records.table)
        whole = copy(sets[0])  # not made anew: that would check the records and choose their partitions again
        parts = {partition: [ArrowRecords(_concat(found))] for partition, found in tables.items()}
        LocalRecordSet.__init__(whole, parts, whole._segment_bytes)
        whole.nbytes = sum(each.nbytes for each in sets)
        return whole


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    whole = pa.concat_tables(tables)
    return whole.combine_chunks() if whole.nbytes < _SMALL_BYTES * len(tables) else whole
