"""Writes a segment that puts pieces of others together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import pyarrow as pa

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.row_groups import row_groups
from lakelog.replication.storage.log.segment import (
    Segment,
    encoded,
    footer_metadata,
    statistics,
    write_file,
    write_segment,
)
from lakelog.replication.storage.log.segment_name import segment_name
from lakelog.replication.storage.log.segment_pieces import DecodedBatches, Piece, empty_file
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, RowGroup, assemble
from lakelog.schemas import LOG


def write_merged(root: StorageRoot, leader: int | None, pieces: Sequence[Piece]) -> Segment:
    """Writes the pieces, in this order, into a new file; it commits nothing. `leader`: that of new records; None for
    records that were in other segments. Raises KafkaStorageException."""
    headers = [header for piece in pieces for header in piece.headers]
    rows = [piece.table for piece in pieces if isinstance(piece, DecodedBatches)]
    if len(rows) == len(pieces):
        return write_segment(root, leader, pa.concat_tables(rows), headers)
    stats = statistics(pa.concat_tables(piece.stats_columns() for piece in pieces))
    groups = [group for _, run in groupby(pieces, type) for group in _groups(list(run))]
    content = assemble(groups, empty_file(), footer_metadata(headers, stats))
    return Segment(write_file(root, partial(segment_name, leader), content, stats), tuple(headers))


def _groups(run: Sequence[Piece]) -> list[RowGroup]:
    """The row groups of pieces of one kind. Rows are encoded together, so that their row groups are large."""
    whole = [group for piece in run if not isinstance(piece, DecodedBatches) for group in piece.groups]
    rows = [piece for piece in run if isinstance(piece, DecodedBatches)]
    if rows:
        headers = [header for piece in rows for header in piece.headers]
        table = pa.concat_tables(piece.table for piece in rows).cast(LOG.arrow)
        whole += ParquetContent(encoded(table, row_groups(headers, table.num_rows), {})).row_groups
    return whole
