"""Writes a segment that puts pieces of others together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import pyarrow as pa

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import (
    Segment,
    encoded,
    footer_metadata,
    statistics,
    write_file,
    write_segment,
)
from lakelog.replication.storage.log.segment_name import segment_name
from lakelog.replication.storage.log.segment_pieces import CopiedGroups, DecodedBatches, Piece, empty_file
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, RowGroup, assemble


def write_merged(root: StorageRoot, pieces: Sequence[Piece]) -> Segment:
    """Writes the pieces, in this order, into a new file; it commits nothing. Raises KafkaStorageException."""
    headers = [header for piece in pieces for header in piece.headers]
    rows = [piece.table for piece in pieces if isinstance(piece, DecodedBatches)]
    if len(rows) == len(pieces):
        return write_segment(root, None, pa.concat_tables(rows), headers)
    stats = statistics(pa.concat_tables(piece.stats_columns() for piece in pieces))
    groups = [group for _, run in groupby(pieces, type) for group in _groups(list(run))]
    content = assemble(groups, empty_file(), footer_metadata(headers, stats))
    return Segment(write_file(root, partial(segment_name, None), content, stats), tuple(headers))


def _groups(run: Sequence[Piece]) -> list[RowGroup]:
    """The row groups of pieces of one kind. DecodedBatches are encoded together, so that their row groups are large."""
    whole = [group for piece in run if isinstance(piece, CopiedGroups) for group in piece.groups]
    rows = [piece for piece in run if isinstance(piece, DecodedBatches)]
    if rows:
        headers = [header for piece in rows for header in piece.headers]
        whole += ParquetContent(encoded(pa.concat_tables(piece.table for piece in rows), headers, {})).row_groups
    return whole
