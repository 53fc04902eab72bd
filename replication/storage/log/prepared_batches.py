"""Batches that are encoded before their offsets are known, by the tasks of a sink.

Each batch has row groups of its own, with the columns of its records. Whoever appends it adds the columns that follow
from its header, which are small, and copies the others as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import pyarrow as pa

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.log.new_batches import (
    DATA_COLUMNS,
    ArrowRecords,
    GivenRecords,
    RecordsSummary,
    header_columns,
    summary_of,
)
from lakelog.replication.storage.log.row_groups import row_groups
from lakelog.replication.storage.log.segment import STATS_COLUMNS, encoded
from lakelog.replication.storage.log.segment_pieces import Piece, decoded
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, RowGroup
from lakelog.schemas import LOG

_COLUMNS = pa.schema([LOG.arrow.field(name) for name in DATA_COLUMNS])
_NULLABLE = pa.schema([(name, LOG.arrow.field(name).type) for name in DATA_COLUMNS])  # as all records of clients
_OTHERS = pa.schema([field for field in LOG.arrow if field.name not in DATA_COLUMNS])


class PreparedBatch(NamedTuple):
    """What a file of prepared batches has of one of them. `groups`: the number of its row groups."""

    topic: str
    partition: int
    groups: int
    summary: RecordsSummary


def prepare(parts: Iterable[tuple[str, int, pa.Table]]) -> tuple[pa.Buffer, tuple[PreparedBatch, ...]]:
    """A file with one batch for each part: its topic, its partition, and records with the columns of `DATA_COLUMNS`."""
    batches, tables, groups = list[PreparedBatch](), list[pa.Table](), list[int]()
    for topic, partition, records in parts:
        summary = summary_of(records)
        own = row_groups([summary], summary.records)
        batches.append(PreparedBatch(topic, partition, len(own), summary))
        tables.append(records.select(DATA_COLUMNS))
        groups += own
    return encoded(pa.concat_tables(tables).cast(_COLUMNS), groups, {}), tuple(batches)


def prepared_records(
    content: pa.Buffer, batches: Sequence[PreparedBatch], path: str
) -> list[tuple[PreparedBatch, GivenRecords]]:
    """The batches of a file. Raises CorruptRecordException, naming the file, if it does not have them.

    Records of a file with another schema, which another version has written, are decoded.
    """
    try:
        parquet = ParquetContent(content)
    except ValueError as error:
        raise CorruptRecordException(f"{path}: {error}") from error
    found, first = list[tuple[PreparedBatch, GivenRecords]](), 0
    for batch in batches:
        numbers = range(first, first := first + batch.groups)
        groups = parquet.row_groups[numbers.start : numbers.stop]
        if sum(group.rows for group in groups) != batch.summary.records:
            raise CorruptRecordException(f"{path}: lacks records of {batch.topic}-{batch.partition}")
        prepared = PreparedRecords(content, groups, numbers, batch.summary)
        is_ours = parquet.schema == _schema()
        found.append((batch, prepared if is_ours else ArrowRecords(prepared.table)))
    return found


@cache
def _schema() -> object:
    return ParquetContent(encoded(_COLUMNS.empty_table(), [], {})).schema


@dataclass(frozen=True)
class PreparedRecords:
    """The records of a prepared batch."""

    content: pa.Buffer
    groups: Sequence[RowGroup]
    numbers: range
    told: RecordsSummary

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return self.told.records

    @property
    def nbytes(self) -> int:
        """Bytes of the columns before they were compressed."""
        return sum(group.nbytes for group in self.groups)

    @cached_property
    def table(self) -> pa.Table:
        """The records, decoded."""
        return decoded(self.content, self.numbers).cast(_NULLABLE)

    def batches(self, start: int, segment_bytes: int) -> Iterator[GivenRecords]:
        """The batch as it is. It is decoded if it is too large, or if the log has some of its records."""
        if start == 0 and self.nbytes <= segment_bytes:
            yield self
        elif start < self.num_rows:
            yield from ArrowRecords(self.table).batches(start, segment_bytes)

    def summary(self) -> RecordsSummary:
        """What the header of the batch says of them."""
        return self.told

    def piece(self, header: BatchHeader) -> Piece:
        """The row groups, with the columns that follow from the header."""
        table = pa.table(header_columns(header)).select(_OTHERS.names)
        others = ParquetContent(encoded(table.cast(_OTHERS), [group.rows for group in self.groups], {}))
        pairs = zip(self.groups, others.row_groups, strict=True)
        return PreparedPiece((header,), tuple(ours.beside(theirs, LOG.names) for ours, theirs in pairs), table, self)


@dataclass(frozen=True)
class PreparedPiece:
    """A prepared batch under its header."""

    headers: tuple[BatchHeader, ...]
    groups: Sequence[RowGroup]
    others: pa.Table
    records: PreparedRecords

    def stats_columns(self) -> pa.Table:
        """The columns of its rows that have statistics."""
        timestamps = decoded(self.records.content, self.records.numbers, ["timestamp"])
        return self.others.append_column("timestamp", timestamps["timestamp"]).select(STATS_COLUMNS)
