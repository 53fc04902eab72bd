"""Makes record batches of the records of a send, and writes them into segments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.protocol.append import AppendPosition, PartitionAppend
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.log_append import Positions
from lakelog.replication.storage.log.pieces import DecodedBatches, Piece, write_pieces
from lakelog.replication.storage.log.record_digest import record_digest
from lakelog.replication.storage.log.segment import Segment, record_bytes
from lakelog.schemas import LOG

DATA_COLUMNS = ("key", "value", "timestamp", "headers")
RECORDS = pa.schema([(name, LOG.arrow.field(name).type) for name in DATA_COLUMNS])  # all nullable, as from clients


class RecordsSummary(NamedTuple):
    """The fields of a batch header that follow from its records. `bytes`: of keys and values. `max_timestamp`: in
    microseconds since 1970. `digest`: that of `record_digest`."""

    records: int
    bytes: int
    max_timestamp: int
    digest: str


def summary_of(records: pa.Table) -> RecordsSummary:
    """The summary of some records with the columns of `DATA_COLUMNS`."""
    size, newest = pc.sum(record_bytes(records)).as_py() or 0, int(pc.max(records["timestamp"]).value)
    return RecordsSummary(records.num_rows, size, newest, record_digest(records))


class NewRecords(Protocol):
    """Records of one partition, which get their offsets from an append."""

    @property
    def num_rows(self) -> int:
        """Number of records."""

    @property
    def nbytes(self) -> int:
        """Bytes that count for the size of a segment."""

    @property
    def table(self) -> pa.Table:
        """The records, with the columns of `DATA_COLUMNS`."""

    def batches(self, start: int, segment_bytes: int) -> Iterator[NewRecords]:
        """The records from this one on: one batch, or several if they exceed `segment_bytes`."""

    @property
    def summary(self) -> RecordsSummary:
        """Their summary, for the header of their batch."""

    def piece(self, header: BatchHeader) -> Piece:
        """The records as the batch of this header, for a segment."""


class ArrowRecords:
    """Records in memory: a table with the columns of `DATA_COLUMNS`."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.num_rows: int = table.num_rows
        self.nbytes: int = table.nbytes

    def batches(self, start: int, segment_bytes: int) -> Iterator[ArrowRecords]:
        """The records from this one on, in batches of about `segment_bytes`."""
        rows = max(1, self.num_rows * segment_bytes // max(1, self.nbytes))
        for first in range(start, self.num_rows, rows):
            yield ArrowRecords(self.table.slice(first, rows))

    @property
    def summary(self) -> RecordsSummary:
        """Their summary, for the header of their batch."""
        return summary_of(self.table)

    def piece(self, header: BatchHeader) -> Piece:
        """The records as rows of a log."""
        columns = {**header_columns(header), **{name: self.table[name] for name in DATA_COLUMNS}}
        return DecodedBatches((header,), pa.table({name: columns[name] for name in LOG.names}))


def joined(given: Iterable[NewRecords]) -> list[NewRecords]:
    """The records, with adjacent tables in memory as one. So the records of many small tasks are one batch: a log keeps
    the header of each batch in memory."""
    found = list[NewRecords]()
    for in_memory, run in groupby(given, key=lambda each: isinstance(each, ArrowRecords)):
        records = list(run)
        found += [ArrowRecords(pa.concat_tables(each.table for each in records))] if in_memory else records
    return found


def digests_of(given: Sequence[NewRecords], parts: Sequence[range]) -> list[str]:
    """The digests of parts of some records. A part is a range of them, counted from 0."""
    if not parts:
        return []
    table = pa.concat_tables(records.table.select(DATA_COLUMNS).cast(RECORDS) for records in given)
    return [record_digest(table.slice(part.start, len(part))) for part in parts]


def header_columns(header: BatchHeader) -> dict[str, pa.Array]:
    """The columns of `schemas.LOG` that follow from a batch's header."""
    constants = {
        "topic": header.topic,
        "partition": header.partition,
        "timestampType": 0,
        "leader_epoch": header.leader_epoch,
        "topic_id": header.topic_id,
    }
    columns = {
        name: pa.repeat(pa.scalar(value, LOG.arrow.field(name).type), header.records)
        for name, value in constants.items()
    }
    return {**columns, "offset": pa.arange(header.base_offset, header.next_offset)}


def write_batches(
    root: StorageRoot,
    leader: int,
    appends: Sequence[PartitionAppend],
    records: Mapping[TopicIdPartition, Sequence[NewRecords]],
    segment_bytes: int,
    positions: Positions,
) -> list[Segment]:
    """Writes the records of each partition that has a position, in their order, into uncommitted segments.
    `segment_bytes`: the size of a segment in bytes."""
    placed = [
        (request.replicas, batch)
        for request in sorted(appends, key=lambda r: (sorted(r.replicas), r.topic, r.partition))
        if request.topic_id_partition in positions
        for batch in batches_of(
            request, records[request.topic_id_partition], positions[request.topic_id_partition], segment_bytes
        )
    ]
    by_replicas = groupby(placed, key=lambda item: sorted(item[0]))
    packs = [pack for _, group in by_replicas for pack in packs_of((batch for _, batch in group), segment_bytes)]

    def write(pack: Sequence[Batch]) -> Segment:
        return write_pieces(root, leader, [new.piece(header) for header, new in pack])

    return in_threads(write, packs, os.cpu_count() or 1)


Batch = tuple[BatchHeader, NewRecords]


def batches_of(
    request: PartitionAppend, given: Sequence[NewRecords], position: AppendPosition, segment_bytes: int
) -> Iterator[Batch]:
    """The new records with their headers, chained to the end of the log."""
    place, previous = 0, position.chain
    base = position.base_offset - position.known
    for records in given:
        start, place = max(0, position.known - place), place + records.num_rows
        at = place - records.num_rows + start
        for batch in records.batches(start, segment_bytes):
            summary = batch.summary
            header = BatchHeader(
                topic=request.topic,
                topic_id=request.topic_id,
                partition=request.partition,
                leader_epoch=request.leader_epoch,
                base_offset=base + at,
                last_offset=base + at + summary.records - 1,
                max_timestamp=summary.max_timestamp,
                bytes=summary.bytes,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                base_sequence=increment_sequence(request.base_sequence, at),
                digest=summary.digest,
            )
            header = linked(header, previous)
            previous, at = header.chain, at + batch.num_rows
            yield header, batch


def packs_of(batches: Iterable[Batch], segment_bytes: int) -> Iterator[list[Batch]]:
    """Groups batches, in the given order, into packs of about `segment_bytes` bytes."""
    pack: list[Batch] = []
    size = 0
    for batch in batches:
        if pack and size + batch[1].nbytes > segment_bytes:
            yield pack
            pack, size = [], 0
        pack.append(batch)
        size += batch[1].nbytes
    if pack:
        yield pack
