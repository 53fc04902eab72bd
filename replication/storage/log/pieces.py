"""Writes new segments from pieces: batches whose row groups are copied as they are, or batches with their rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.data_file_name import named_digest, segment_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.record_digest import check_digest
from lakelog.replication.storage.log.segment import (
    LEAST_BYTES,
    STATS_COLUMNS,
    Segment,
    decoded,
    encoded,
    footer_metadata,
    read_file,
    row_groups,
    rows_of,
    statistics,
    write_file,
    write_segment,
)
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, RowGroup, assemble
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)


class Target(NamedTuple):
    """Where a batch goes: the number of the new segment, and the position among its batches."""

    segment: int
    position: int


_STATS = pa.schema([LOG.arrow.field(name) for name in STATS_COLUMNS])

Targets: TypeAlias = Mapping[BatchHeader, Target]


@dataclass(frozen=True)
class DecodedBatches:
    """Batches with their rows, in columns of `schemas.LOG`."""

    headers: tuple[BatchHeader, ...]
    table: pa.Table


@dataclass(frozen=True)
class CopiedBatches:
    """Batches in row groups that are copied. `stats_columns` decodes the columns that have statistics in a commit: a
    row group's own statistics may be missing or shortened."""

    headers: tuple[BatchHeader, ...]
    row_groups: Sequence[RowGroup]
    stats_columns: Callable[[], pa.Table]


Piece: TypeAlias = DecodedBatches | CopiedBatches


@cache
def empty_segment() -> ParquetContent:
    """A segment without rows. `pieces_of` copies only row groups of its schema."""
    return ParquetContent(encoded(LOG.arrow.empty_table(), [], {}))


def pieces_of(root: StorageRoot, segment: Segment, targets: Targets) -> Iterator[Piece]:
    """The batches of a segment, in the order of its headers, as pieces. Batches of one piece stay together.

    Raises CorruptRecordException, naming the file, if it differs from the committed one, and KafkaStorageException.
    """
    content, path = read_file(root, segment.file), root.path(segment.name)
    try:
        groups = _groups(segment, content)
        if not groups:
            yield from _decoded_batches(segment.headers, decoded(content), path)
            return
        for batches, indices in _spans(segment.headers, [group.rows for group in groups]):
            headers = segment.headers[batches.start : batches.stop]
            if _stays_together(headers, targets):
                stats_columns = partial(decoded, content, indices, STATS_COLUMNS)
                yield CopiedBatches(headers, groups[indices.start : indices.stop], stats_columns)
            else:
                yield from _decoded_batches(headers, decoded(content, indices), path)
    except (ValueError, OSError) as error:
        raise CorruptRecordException(f"{path}: {error}") from error


def decoded_batches(root: StorageRoot, segment: Segment) -> Iterator[DecodedBatches]:
    """Each batch of a segment with its rows, in the order of its headers. Raises as `pieces_of`."""
    content, path = read_file(root, segment.file), root.path(segment.name)
    try:
        yield from _decoded_batches(segment.headers, decoded(content), path)
    except (ValueError, OSError) as error:
        raise CorruptRecordException(f"{path}: {error}") from error


def _groups(segment: Segment, content: pa.Buffer) -> Sequence[RowGroup]:
    """The row groups of a file, if they may be copied. Those of another tool or schema are decoded."""
    if named_digest(segment.name) is None or _bytes(segment.headers) < LEAST_BYTES:  # nothing to gain with a small one
        return ()
    try:
        parquet = ParquetContent(content)
    except ValueError as error:  # readers of Parquet may be less strict
        logger.warning("%s: its row groups cannot be copied: %s", segment.name, error)
        return ()
    return parquet.row_groups if parquet.schema == empty_segment().schema else ()


def _spans(headers: Sequence[BatchHeader], row_counts: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest runs of whole batches that are also runs of whole row groups. `row_counts`: those of the row groups.
    Raises ValueError if the headers have other rows."""
    stated = sum(header.retained.records for header in headers)
    if sum(row_counts) != stated:
        raise ValueError(f"has {sum(row_counts)} rows, its headers have {stated}")
    group, rows, first, ends = 0, 0, (0, 0), list(accumulate(row_counts))
    for number, header in enumerate(headers, 1):
        rows += header.retained.records
        while ends[group] < rows:
            group += 1
        if rows == ends[group]:
            yield range(first[0], number), range(first[1], group + 1)
            first = number, group + 1


def _stays_together(headers: Sequence[BatchHeader], targets: Targets) -> bool:
    """Whether these batches follow each other in one new segment, and are large enough to stay as they are."""
    first = targets[headers[0]]
    there = [first._replace(position=first.position + number) for number in range(len(headers))]
    return _bytes(headers) >= LEAST_BYTES and [targets[header] for header in headers] == there


def _bytes(headers: Sequence[BatchHeader]) -> int:
    return sum(header.retained.bytes for header in headers)


def _decoded_batches(headers: Sequence[BatchHeader], table: pa.Table, path: str) -> Iterator[DecodedBatches]:
    """Each batch with its rows. They have the order of the headers, except in a file of another tool."""
    records, start = table.cast(LOG.arrow), 0
    for header in headers:
        rows = records.slice(start, header.retained.records)
        start += header.retained.records
        if not _is_batch(header, rows):
            rows = rows_of(records, header.topic_id_partition, header.base_offset, header.next_offset)
            check_digest(header, rows, path)
        yield DecodedBatches((header,), rows)


def _is_batch(header: BatchHeader, rows: pa.Table) -> bool:
    if rows.num_rows != header.retained.records:
        return False
    if not rows.num_rows:
        return True
    ends = [(rows["topic_id"][n].as_py(), rows["partition"][n].as_py()) for n in (0, -1)]
    first, last = (rows["offset"][n].as_py() for n in (0, -1))
    is_within = header.base_offset <= first <= last <= header.last_offset
    is_whole = (first, last) == (header.base_offset, header.last_offset)
    return ends == [header.topic_id_partition] * 2 and (is_within if header.cleaned else is_whole)


def write_pieces(root: StorageRoot, leader: int | None, pieces: Sequence[Piece]) -> Segment:
    """Writes the pieces, in this order, into a new file; it commits nothing. `leader`: that of new records; None for
    records that were in other segments. Raises KafkaStorageException."""
    headers = [header for piece in pieces for header in piece.headers]
    decoded = [piece for piece in pieces if isinstance(piece, DecodedBatches)]
    if len(decoded) == len(pieces):
        return write_segment(root, leader, pa.concat_tables(piece.table for piece in decoded), headers)
    stats = statistics(pa.concat_tables(_stats_columns(piece) for piece in pieces), headers)
    content = assemble(_row_groups(pieces), empty_segment(), footer_metadata(headers, stats))
    return Segment(write_file(root, partial(segment_name, leader), content, stats), tuple(headers))


def _stats_columns(piece: Piece) -> pa.Table:
    """The columns of a piece that have statistics. The columns of a client's records may be nullable."""
    found = piece.stats_columns() if isinstance(piece, CopiedBatches) else piece.table.select(STATS_COLUMNS)
    return found.cast(_STATS)


def _row_groups(pieces: Sequence[Piece]) -> list[RowGroup]:
    found, waiting = list[RowGroup](), list[DecodedBatches]()
    for piece in pieces:
        if isinstance(piece, DecodedBatches):
            waiting.append(piece)
        else:
            found += [*_encoded_together(waiting), *piece.row_groups]
            waiting = []
    return found + _encoded_together(waiting)


def _encoded_together(pieces: Sequence[DecodedBatches]) -> list[RowGroup]:
    """Row groups of several batches, which are larger than those of one."""
    if not pieces:
        return []
    table = pa.concat_tables(piece.table for piece in pieces).cast(LOG.arrow)
    batches = [header.retained for piece in pieces for header in piece.headers]
    row_counts = row_groups(batches, table.num_rows)
    return ParquetContent(encoded(table, row_counts, {})).row_groups
