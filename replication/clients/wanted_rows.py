"""Reads the records of several partitions, each segment once, several segments at the same time. [FE-01]"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.partition_rows import RowRange, read_row_ranges, row_ranges
from lakelog.replication.storage.log.segment import Segment
from lakelog.schemas import LOG

_FILES_AT_A_TIME = 8


class WantedRows(NamedTuple):
    """The records of a partition from offset `start` to before `stop`, and the segments of the log in `root` that have
    them."""

    root: StorageRoot
    segments: Sequence[Segment]
    topic_id_partition: TopicIdPartition
    start: int
    stop: int


Key = TypeVar("Key", bound=Hashable)


class _File(NamedTuple, Generic[Key]):
    """A segment, and the wanted ranges in it with the keys of those who want them."""

    root: StorageRoot
    segment: Segment
    ranges: list[RowRange]
    keys: list[Key]


def read_rows(wanted: Mapping[Key, WantedRows]) -> dict[Key, pa.Table | LakelogException]:
    """The wanted records in the order of offsets, with the columns of `schemas.LOG`, or the error of their segments."""
    parts: dict[Key, list[tuple[int, pa.Table]]] = {key: [] for key in wanted}
    errors: dict[Key, LakelogException] = {}
    for key, start, read in (part for file in in_threads(_read, _files(wanted), _FILES_AT_A_TIME) for part in file):
        if isinstance(read, LakelogException):
            errors.setdefault(key, read)
        else:
            parts[key].append((start, read))
    return {key: errors.get(key) or _joined(found) for key, found in parts.items()}


def _files(wanted: Mapping[Key, WantedRows]) -> list[_File[Key]]:
    files: dict[tuple[str, str], _File[Key]] = {}
    for key, (root, segments, partition, start, stop) in wanted.items():
        for segment in segments:
            file = files.setdefault((root.uri, segment.name), _File(root, segment, [], []))
            found = row_ranges(segment.headers, partition, start, stop)
            file.ranges.extend(found)
            file.keys.extend([key] * len(found))
    return [file for file in files.values() if file.ranges]


def _read(file: _File[Key]) -> list[tuple[Key, int, pa.Table | LakelogException]]:
    try:
        rows = sum(header.records for header in file.segment.headers)
        tables = read_row_ranges(file.root, file.segment.name, file.segment.file.size, rows, file.ranges)
    except LakelogException as error:
        return [(key, each.start, error) for key, each in zip(file.keys, file.ranges, strict=True)]
    return [(key, each.start, table) for key, each, table in zip(file.keys, file.ranges, tables, strict=True)]


def _joined(parts: list[tuple[int, pa.Table]]) -> pa.Table:
    ordered = [table for _, table in sorted(parts, key=lambda part: part[0])]
    return pa.concat_tables(ordered) if ordered else LOG.arrow.empty_table()
