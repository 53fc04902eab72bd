"""Writes pieces into a new segment: it copies row groups that are encoded already, and encodes the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.row_groups import row_groups
from lakelog.replication.storage.log.segment import (
    STATS_COLUMNS,
    Segment,
    encoded,
    footer_metadata,
    statistics,
    write_file,
    write_segment,
)
from lakelog.replication.storage.log.segment_name import segment_name
from lakelog.replication.storage.log.segment_pieces import CopiedBatches, DecodedBatches, Piece, empty_segment
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, RowGroup, assemble
from lakelog.schemas import LOG


def write_pieces(root: StorageRoot, leader: int | None, pieces: Sequence[Piece]) -> Segment:
    """Writes the pieces, in this order, into a new file; it commits nothing. `leader`: that of new records; None for
    records that were in other segments. Raises KafkaStorageException."""
    headers = [header for piece in pieces for header in piece.headers]
    decoded = [piece for piece in pieces if isinstance(piece, DecodedBatches)]
    if len(decoded) == len(pieces):
        return write_segment(root, leader, pa.concat_tables(piece.table for piece in decoded), headers)
    stats = statistics(pa.concat_tables(_stats_columns(piece) for piece in pieces))
    content = assemble(_row_groups(pieces), empty_segment(), footer_metadata(headers, stats))
    return Segment(write_file(root, partial(segment_name, leader), content, stats), tuple(headers))


def _stats_columns(piece: Piece) -> pa.Table:
    return piece.stats_columns() if isinstance(piece, CopiedBatches) else piece.table.select(STATS_COLUMNS)


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
    row_counts = row_groups([header for piece in pieces for header in piece.headers], table.num_rows)
    return ParquetContent(encoded(table, row_counts, {})).row_groups
