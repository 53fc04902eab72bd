"""The pieces of segments that a merge puts together: row groups that are copied as they are, or rows.

Copying takes a twentieth of the CPU time of decoding and encoding. It is possible for row groups whose batches stay
together in the new file, and worthwhile for large ones: small ones become larger when they are written anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.record_digest import check_digest
from lakelog.replication.storage.log.row_groups import LEAST_BYTES
from lakelog.replication.storage.log.segment import STATS_COLUMNS, Segment, encoded, read_file, rows_of
from lakelog.replication.storage.log.segment_name import named_digest
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, RowGroup
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)

# Where the batches of a segment go: the number of the new file, and the place in it.
Places: TypeAlias = Mapping[BatchHeader, tuple[int, int]]


class CopiedPiece(Protocol):
    """Batches whose row groups are copied as they are."""

    @property
    def headers(self) -> tuple[BatchHeader, ...]:
        """The headers of the batches."""

    @property
    def groups(self) -> Sequence[RowGroup]:
        """The row groups that have just these batches."""

    def stats_columns(self) -> pa.Table:
        """The columns of the rows that have statistics."""


@dataclass(frozen=True)
class DecodedBatches:
    """Batches with their rows, in columns of `schemas.LOG`."""

    headers: tuple[BatchHeader, ...]
    table: pa.Table

    def stats_columns(self) -> pa.Table:
        """The columns of its rows that have statistics."""
        return self.table.select(STATS_COLUMNS)


Piece: TypeAlias = DecodedBatches | CopiedPiece


@dataclass(frozen=True)
class CopiedGroups:
    """Batches that fill row groups of a file."""

    headers: tuple[BatchHeader, ...]
    content: pa.Buffer
    numbers: range
    groups: Sequence[RowGroup]

    def stats_columns(self) -> pa.Table:
        """The columns of its rows that have statistics."""
        return decoded(self.content, self.numbers, STATS_COLUMNS)


@cache
def empty_file() -> ParquetContent:
    """A segment without rows. Only row groups of its schema are copied."""
    return ParquetContent(encoded(LOG.arrow.empty_table(), [], {}))


def pieces_of(root: StorageRoot, segment: Segment, places: Places) -> Iterator[Piece]:
    """The batches of a segment, in the order of its headers, as pieces whose batches may go to any place.

    Raises CorruptRecordException, naming the file, if it is not what was committed, and KafkaStorageException.
    """
    content, path = read_file(root, segment.file), root.path(segment.name)
    try:
        groups = _groups(segment, content)
        if not groups:
            yield from _rows(segment.headers, decoded(content), path)
            return
        for batches, numbers in _spans(segment.headers, [group.rows for group in groups]):
            headers = segment.headers[batches.start : batches.stop]
            if _stays_together(headers, places):
                yield CopiedGroups(headers, content, numbers, groups[numbers.start : numbers.stop])
            else:
                yield from _rows(headers, decoded(content, numbers), path)
    except (ValueError, OSError) as error:
        raise CorruptRecordException(f"{path}: {error}") from error


def _groups(segment: Segment, content: pa.Buffer) -> Sequence[RowGroup]:
    """The row groups of a file, if they may be copied. Those of another tool or schema are decoded."""
    if named_digest(segment.name) is None:
        return ()
    try:
        parquet = ParquetContent(content)
    except ValueError as error:  # readers of Parquet may be less strict
        logger.warning("%s: its row groups cannot be copied: %s", segment.name, error)
        return ()
    return parquet.row_groups if parquet.schema == empty_file().schema else ()


def _spans(headers: Sequence[BatchHeader], groups: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest runs of whole batches that are also runs of whole row groups. `groups`: the number of rows of each
    row group. Raises ValueError if the headers have other rows."""
    if sum(groups) != sum(header.records for header in headers):
        raise ValueError(f"has {sum(groups)} rows, its headers have {sum(header.records for header in headers)}")
    group, rows, first, ends = 0, 0, (0, 0), list(accumulate(groups))
    for number, header in enumerate(headers, 1):
        rows += header.records
        while group < len(ends) and ends[group] < rows:
            group += 1
        if rows == ends[group]:
            yield range(first[0], number), range(first[1], group + 1)
            first = number, group + 1


def _stays_together(headers: Sequence[BatchHeader], places: Places) -> bool:
    """Whether these batches follow each other in one new file, and are large enough to stay as they are."""
    (file, first), size = places[headers[0]], sum(header.bytes for header in headers)
    there = [(file, first + number) for number in range(len(headers))]
    return size >= LEAST_BYTES and [places[header] for header in headers] == there


def decoded(content: pa.Buffer, numbers: range | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of some row groups, or of all. It takes one core, because others must not feel it."""
    file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
    return file.read_row_groups(
        list(range(file.num_row_groups) if numbers is None else numbers), columns, use_threads=False
    )


def _rows(headers: Sequence[BatchHeader], decoded: pa.Table, path: str) -> Iterator[DecodedBatches]:
    """Each batch with its rows. They have the order of the headers, except in a file of another tool."""
    records, start = decoded.cast(LOG.arrow), 0
    for header in headers:
        rows = records.slice(start, header.records)
        start += header.records
        if not _is_batch(header, rows):
            rows = rows_of(records, header.topic_id_partition, header.base_offset, header.next_offset)
            check_digest(header, rows, path)
        yield DecodedBatches((header,), rows)


def _is_batch(header: BatchHeader, rows: pa.Table) -> bool:
    ends = [(rows["topic_id"][n].as_py(), rows["partition"][n].as_py(), rows["offset"][n].as_py()) for n in (0, -1)]
    return ends == [(*header.topic_id_partition, o) for o in (header.base_offset, header.last_offset)]
