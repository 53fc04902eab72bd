"""Writing a part of a segment into a file of its own: what is left of it, or what a follower wants of it."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.compute as pc

from replication.protocol.producer_state import increment_sequence
from replication.protocol.record_batch import NO_PRODUCER_ID, BatchHeader
from replication.storage.filesystem import StorageRoot
from replication.storage.segment import Segment, read_records, record_bytes, rows_of, write_segment
from replication.storage.segment_name import leader_of


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
    return write_segment(target, leader_of(segment.name), pa.concat_tables(rows for _, rows in parts), headers)


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
