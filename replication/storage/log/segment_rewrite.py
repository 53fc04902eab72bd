"""Writes some batches of a segment into a new file: those that remain, or those that a follower wants."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.record_digest import check_digest
from lakelog.replication.storage.log.segment import Segment, read_records, rows_of, write_segment
from lakelog.replication.storage.log.segment_name import leader_of


def rewrite(
    source: StorageRoot, segment: Segment, target: StorageRoot, headers: Sequence[BatchHeader]
) -> Segment | None:
    """Writes some batches of a segment at `source` into a new one at `target`; None if there are no batches.

    A batch stays whole, because a part of one has no chain. Raises CorruptRecordException, naming the file, if the
    records do not match their headers, and KafkaStorageException.
    """
    if not headers:
        return None
    records = read_records(source, segment.name)
    parts = [rows_of(records, h.topic_id_partition, h.base_offset, h.next_offset) for h in headers]
    for header, rows in zip(headers, parts, strict=True):
        check_digest(header, rows, source.path(segment.name))
    return write_segment(target, leader_of(segment.name), pa.concat_tables(parts), headers)
