"""Fetch from an offset: the batches of a leader's log for a follower that cannot follow the newest commits yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import TableHandle, add_actions
from lakelog.replication.storage.delta.table_opening import reopen_table
from lakelog.replication.storage.log.broken_segments import BrokenSegment, SoughtRange, ranges, read_segments
from lakelog.replication.storage.log.segment import Segment

_RANGES = ("min.topic", "max.topic", "min.partition", "max.partition", "max.offset")


Read: TypeAlias = Callable[[Sequence[AddedFile]], Sequence[Segment | BrokenSegment]]
Failed: TypeAlias = dict[TopicIdPartition, CorruptRecordException]


def segments_from(
    log: StorageRoot, wanted: Mapping[TopicIdPartition, int], topics: Mapping[TopicIdPartition, str],
    read: Read | None = None,
) -> tuple[list[Segment], Failed]:  # fmt: skip
    """The segments that may hold batches which end at or after the wanted offset of their partition, at the newest
    version of the log at `log`; and the partitions that a broken segment may hold records of, each with an error that
    names the file. `topics` has the known names of their topics. `read` reads footers. [FT-12, OL-01]

    It reads only the footers of files that may match by their statistics. Raises KafkaStorageException if the table
    cannot be read.
    """
    if not wanted:
        return [], {}
    handle = reopen_table(log).handle
    assert handle is not None, "delta-rs opens the table of a broker again"
    files = _candidates(handle, wanted, topics)
    segments = read(files) if read else read_segments(log, files)
    failed = {
        partition: CorruptRecordException(broken.fault)
        for broken in segments
        if isinstance(broken, BrokenSegment)
        for partition, offset in wanted.items()
        if broken.may_hold(partition, topics.get(partition), offset)
    }
    return [segment for segment in segments if isinstance(segment, Segment)], failed


def wanted_batches(segment: Segment, wanted: Mapping[TopicIdPartition, int]) -> list[FetchedBatch]:
    """The batches of a segment that end at or after the wanted offset of their partition."""
    return [
        FetchedBatch.of(header, segment.name, segment.file.size)
        for header in segment.headers
        if header.last_offset >= wanted.get(header.topic_id_partition, header.next_offset)
    ]


def batches_from(
    log: StorageRoot, wanted: Mapping[TopicIdPartition, int], topics: Mapping[TopicIdPartition, str]
) -> tuple[list[FetchedBatch], Failed]:
    """The wanted batches of `segments_from`, without those of partitions that failed."""
    segments, failed = segments_from(log, wanted, topics)
    sound = {partition: offset for partition, offset in wanted.items() if partition not in failed}
    return [batch for segment in segments for batch in wanted_batches(segment, sound)], failed


def batch_ends_from(
    log: StorageRoot, wanted: Mapping[TopicIdPartition, int], topics: Mapping[TopicIdPartition, str]
) -> tuple[dict[TopicIdPartition, list[LogEnd]], dict[TopicIdPartition, CorruptRecordException]]:
    """The ends of the batches of `batches_from` with their chains, in order; and the partitions that failed, with
    errors.

    Raises KafkaStorageException if the table cannot be read. [TR-08]
    """
    batches, failed = batches_from(log, wanted, topics)
    ends: dict[TopicIdPartition, list[LogEnd]] = {partition: [] for partition in wanted if partition not in failed}
    for batch in batches:
        ends[batch.topic_id_partition].append(LogEnd(batch.last_offset + 1, batch.chain))
    return {partition: sorted(found) for partition, found in ends.items()}, failed


def _candidates(
    handle: TableHandle, wanted: Mapping[TopicIdPartition, int], topics: Mapping[TopicIdPartition, str]
) -> list[AddedFile]:  # fmt: skip
    files = add_actions(handle, flatten=True)
    if not set(_RANGES) <= set(files.column_names):  # no file has statistics, or there is no file
        return _added(files)
    sought = SoughtRange.of(wanted, topics)
    may_hold = pc.and_(
        pc.greater_equal(files["max.offset"], sought.offset), _overlap(files, "partition", sought.partitions)
    )
    if sought.topics is not None:
        may_hold = pc.and_(may_hold, _overlap(files, "topic", sought.topics))
    return _added(files.filter(pc.fill_null(may_hold, True)))


def _overlap(files: pa.Table, column: str, between: tuple[object, object]) -> pa.ChunkedArray:
    first, last = between
    return pc.and_(pc.less_equal(files[f"min.{column}"], last), pc.greater_equal(files[f"max.{column}"], first))


def _added(files: pa.Table) -> list[AddedFile]:
    return [AddedFile(row["path"], row["size_bytes"], ranges(row)) for row in files.to_pylist()]
