"""Cutting logs: what goes and what is written anew, in one commit that adds nothing new. [TR-05]"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from replication.protocol.producer_state import increment_sequence
from replication.protocol.record_batch import NO_PRODUCER_ID, BatchHeader, TopicIdPartition
from replication.storage.filesystem import StorageRoot
from replication.storage.log_state import LogState
from replication.storage.replica_log import LogChange, ReplicaLog
from replication.storage.segment import Segment, leader_of, read_records, record_bytes, rows_of, write_segment


def truncate_to(log: ReplicaLog, offsets: Mapping[TopicIdPartition, int], cause: Mapping[str, object]) -> int | None:
    """Drops the records at and above each partition's offset; nothing happens where the LEO is not above it.

    Segments that hold such records are removed, and what else is in them is written again, in the same commit.
    Returns the version, None if there was nothing to cut.
    """

    def decide(state: LogState) -> LogChange | None:
        touched = {
            batch.segment
            for partition, offset in offsets.items()
            for batch in state.partition(partition).batches
            if batch.header.next_offset > offset
        }
        removed = tuple(state.segments[name] for name in sorted(touched))
        kept = (without(log.root, segment, offsets) for segment in removed)
        return LogChange(adds=tuple(k for k in kept if k), removes=removed) if removed else None

    return log.transact(cause, decide)


def without(root: StorageRoot, segment: Segment, offsets: Mapping[TopicIdPartition, int]) -> Segment | None:
    """A new segment with the rows of `segment` that lie below the offsets; None if none does."""
    ranges = [
        (
            header,
            header.base_offset,
            min(header.next_offset, offsets.get(header.topic_id_partition, header.next_offset)),
        )
        for header in segment.headers
    ]
    return rewrite(root, segment, root, [r for r in ranges if r[1] < r[2]])


def rewrite(
    source: StorageRoot, segment: Segment, target: StorageRoot, ranges: list[tuple[BatchHeader, int, int]]
) -> Segment | None:
    """A new segment at `target` with parts of the batches of one at `source`.

    `ranges` has a batch's header, the first offset wanted and the one after the last. None if there are none.
    """
    if not ranges:
        return None
    records = read_records(source, segment.name)
    parts = [(header, rows_of(records, header.topic_id_partition, start, stop)) for header, start, stop in ranges]
    headers = [cut_header(header, rows) for header, rows in parts]
    return write_segment(target, leader_of(segment.name) or 0, pa.concat_tables(rows for _, rows in parts), headers)


def cut_header(header: BatchHeader, rows: pa.Table) -> BatchHeader:
    """The header of a part of a batch: its own offsets, sequence, size and time."""
    base, last = (int(rows["offset"][index].as_py()) for index in (0, -1))
    sequence = header.base_sequence
    if header.producer_id != NO_PRODUCER_ID:
        sequence = increment_sequence(sequence, base - header.base_offset)
    return dataclasses.replace(
        header,
        base_offset=base,
        last_offset=last,
        base_sequence=sequence,
        max_timestamp=int(pc.max(rows["timestamp"]).value),
        bytes=pc.sum(record_bytes(rows)).as_py() or 0,
    )
