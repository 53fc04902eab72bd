"""Fetch from an offset: which batches of a leader's log a follower needs that cannot follow the tail yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from replication.errors import KafkaStorageException
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.commit import AddedFile
from replication.storage.filesystem import StorageRoot
from replication.storage.record_batches import header_row
from replication.storage.segment import read_segment

_RANGES = ("min.partition", "max.partition", "max.offset")


def headers_from(log: StorageRoot, wanted: Mapping[TopicIdPartition, int]) -> list[tuple[Any, ...]]:
    """Header rows (`schemas.RECORD_BATCHES`) of all batches that end at or after the wanted offset of their partition,
    at the newest version of the log at `log`.

    Statistics tell which files may hold any; only their footers are read. Raises KafkaStorageException when the table
    cannot be read, CorruptRecordException, naming the file, when a segment cannot.
    """
    if not wanted:
        return []
    try:
        handle = DeltaTable(log.uri, storage_options=dict(log.options))
    except (TableNotFoundError, DeltaError, OSError) as error:
        raise KafkaStorageException(f"{log.uri}: cannot be read: {error}") from error
    segments = (read_segment(log, file) for file in _candidates(handle, wanted))
    return [
        header_row(handle.version(), segment.name, segment.file.size, header)
        for segment in segments
        for header in segment.headers
        if header.last_offset >= wanted.get(header.topic_id_partition, header.next_offset)
    ]


def _candidates(handle: DeltaTable, wanted: Mapping[TopicIdPartition, int]) -> list[AddedFile]:
    files = pa.table(handle.get_add_actions(flatten=True))
    if not set(_RANGES) <= set(files.column_names):  # no file has statistics yet, or there is none
        return [AddedFile(name, size) for name, size in _names_and_sizes(files)]
    numbers = [partition.partition for partition in wanted]
    may_hold = pc.and_(
        pc.greater_equal(files["max.offset"], min(wanted.values())),
        pc.and_(
            pc.less_equal(files["min.partition"], max(numbers)),
            pc.greater_equal(files["max.partition"], min(numbers)),
        ),
    )
    chosen = files.filter(pc.fill_null(may_hold, True))
    return [AddedFile(name, size) for name, size in _names_and_sizes(chosen)]


def _names_and_sizes(files: pa.Table) -> list[tuple[str, int]]:
    return list(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
