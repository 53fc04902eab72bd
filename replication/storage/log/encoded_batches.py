"""Batches that Spark's tasks encode before their offsets are known.

Each batch has row groups of its own, with the columns of its records. The writer of a segment adds the columns that
follow from the batch's header, which are small, and copies the others as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import pyarrow as pa

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.data_file_name import digest_of, staged_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reading
from lakelog.replication.storage.log.new_batches import (
    DATA_COLUMNS,
    RECORDS,
    ArrowRecords,
    NewRecords,
    RecordsSummary,
    header_columns,
    summary_of,
)
from lakelog.replication.storage.log.pieces import CopiedBatches, Piece
from lakelog.replication.storage.log.segment import STATS_COLUMNS, decoded, encoded, row_groups
from lakelog.replication.storage.parquet.row_group_copy import ParquetContent, RowGroup
from lakelog.schemas import LOG

_COLUMNS = pa.schema([LOG.arrow.field(name) for name in DATA_COLUMNS])
_HEADER_COLUMNS = pa.schema([field for field in LOG.arrow if field.name not in DATA_COLUMNS])


class EncodedBatch(NamedTuple):
    """A batch in a file of encoded ones. Its row groups follow those of the batch before it."""

    topic: str
    partition: int
    row_group_count: int
    summary: RecordsSummary


def encode_batches(parts: Iterable[tuple[str, int, pa.Table]]) -> tuple[pa.Buffer, tuple[EncodedBatch, ...]]:
    """A file with one batch for each part: its topic, its partition, and records with the columns of `DATA_COLUMNS`."""
    batches, tables, row_counts = list[EncodedBatch](), list[pa.Table](), list[int]()
    for topic, partition, records in parts:
        summary = summary_of(records)
        own = row_groups([summary], summary.records)
        batches.append(EncodedBatch(topic, partition, len(own), summary))
        tables.append(records.select(DATA_COLUMNS))
        row_counts += own
    return encoded(pa.concat_tables(tables).cast(_COLUMNS), row_counts, {}), tuple(batches)


def encoded_records(
    content: pa.Buffer, batches: Sequence[EncodedBatch], path: str
) -> list[tuple[EncodedBatch, NewRecords]]:
    """The batches of a file. Raises CorruptRecordException, naming the file, if it does not have them.

    Records of a file with another schema, which another version has written, are decoded.
    """
    try:
        parquet = ParquetContent(content)
    except ValueError as error:
        raise CorruptRecordException(f"{path}: {error}") from error
    is_ours, found, first = parquet.schema == _schema(), list[tuple[EncodedBatch, NewRecords]](), 0
    for batch in batches:
        indices = range(first, first + batch.row_group_count)
        groups = parquet.row_groups[indices.start : indices.stop]
        if sum(group.rows for group in groups) != batch.summary.records:
            raise CorruptRecordException(f"{path}: lacks records of {batch.topic}-{batch.partition}")
        records = EncodedRecords(content, groups, indices, batch.summary)
        found.append((batch, records if is_ours else ArrowRecords(records.table)))
        first = indices.stop
    return found


@cache
def _schema() -> object:
    return ParquetContent(encoded(_COLUMNS.empty_table(), [], {})).schema


@dataclass(frozen=True)
class EncodedRecords:
    """The records of an encoded batch, in row groups of a file: at `indices` of `content`."""

    content: pa.Buffer
    row_groups: Sequence[RowGroup]
    indices: range
    summary: RecordsSummary

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return self.summary.records

    @property
    def nbytes(self) -> int:
        """Bytes of the columns before they were compressed."""
        return sum(group.nbytes for group in self.row_groups)

    @cached_property
    def table(self) -> pa.Table:
        """The records, decoded."""
        return decoded(self.content, self.indices).cast(RECORDS)

    def batches(self, start: int, segment_bytes: int) -> Iterator[NewRecords]:
        """The batch as it is. It is decoded if it is too large, or if the log has some of its records."""
        return _whole_or_decoded(self, start, segment_bytes)

    def piece(self, header: BatchHeader) -> Piece:
        """The row groups, with the columns that follow from the header."""
        table = pa.table(header_columns(header)).select(_HEADER_COLUMNS.names).cast(_HEADER_COLUMNS)
        others = ParquetContent(encoded(table, [group.rows for group in self.row_groups], {})).row_groups
        groups = [ours.with_columns_of(theirs, LOG.names) for ours, theirs in zip(self.row_groups, others, strict=True)]

        def stats_columns() -> pa.Table:
            timestamps = decoded(self.content, self.indices, ["timestamp"])["timestamp"]
            return table.append_column("timestamp", timestamps).select(STATS_COLUMNS)

        return CopiedBatches((header,), groups, stats_columns)


def _whole_or_decoded(records: NewRecords, start: int, segment_bytes: int) -> Iterator[NewRecords]:
    if start == 0 and records.nbytes <= segment_bytes:
        yield records
    elif start < records.num_rows:
        yield from ArrowRecords(records.table).batches(start, segment_bytes)


@dataclass(frozen=True)
class StagedRecords:
    """The records of an encoded batch in a file beside a log, which no commit names. They are read when they are
    used: a task that writes many of them into segments keeps few in memory.

    `start` and `size`: where the batch lies in the file, as a Parquet file of its own. `digest`: of these bytes.
    """

    root: StorageRoot
    name: str
    file_size: int
    start: int
    size: int
    digest: str
    batch: EncodedBatch
    nbytes: int

    @property
    def partition(self) -> int:
        """The partition that they go to."""
        return self.batch.partition

    @property
    def summary(self) -> RecordsSummary:
        """Their summary, for the header of their batch."""
        return self.batch.summary

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return self.summary.records

    @property
    def table(self) -> pa.Table:
        """The records, read and decoded. Raises CorruptRecordException and KafkaStorageException, as all that read."""
        return self._read().table

    def batches(self, start: int, segment_bytes: int) -> Iterator[NewRecords]:
        """The batch as it is. It is read if it is too large, or if the log has some of its records."""
        return _whole_or_decoded(self, start, segment_bytes)

    def piece(self, header: BatchHeader) -> Piece:
        """The row groups, with the columns that follow from the header."""
        return self._read().piece(header)

    def _read(self) -> NewRecords:
        path = self.root.path(self.name)
        try:
            with reading(path), self.root.open(self.name, self.file_size) as file:
                file.seek(self.start)
                content = file.read_buffer(self.size)
        except FileNotFoundError as error:
            raise CorruptRecordException(f"{path}: is gone, and a send needs it") from error
        if digest_of(content) != self.digest:
            raise CorruptRecordException(f"{path}: does not have the bytes that were staged")
        ((_, records),) = encoded_records(content, [self.batch], path)
        return records


def stage(root: StorageRoot, parts: Sequence[tuple[str, int, pa.Table]], prefix: str) -> list[StagedRecords]:
    """Puts parts as in `encode_batches` into a new file of a log's folder, whose name has the prefix of a send, and
    returns them. A file that nobody deletes goes a day later, with other files that no commit has. Raises
    KafkaStorageException."""
    encoded_parts = [encode_batches([part]) for part in parts]
    whole = pa.py_buffer(b"".join(content for content, _ in encoded_parts))
    name, start, found = staged_name(prefix), 0, list[StagedRecords]()
    root.put(name, whole)
    for content, (batch,) in encoded_parts:
        nbytes = sum(group.nbytes for group in ParquetContent(content).row_groups)
        place = name, whole.size, start, content.size, digest_of(content)
        found.append(StagedRecords(root, *place, batch, nbytes))
        start += content.size
    return found
