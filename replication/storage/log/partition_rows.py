"""Finds the rows of a partition's records in a segment, and reads them: only the row groups that have them, one after
the other, and without a copy. [FE-01]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import OffsetRange, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import Segment, read_records, rows_of
from lakelog.schemas import LOG

# A smaller file is read as a whole. In an object store its footer alone would take as long; and a file that is wanted
# for the most part is read by one request there.
_WHOLE_BYTES = 4 << 20
_CHECKED = ("partition", "offset", "topic_id")


@dataclass(frozen=True)
class SegmentFile:
    """Where a segment's rows are read: its log, its name, the bytes of its file and its number of rows."""

    root: StorageRoot
    name: str
    size: int
    rows: int

    @classmethod
    def of(cls, root: StorageRoot, segment: Segment) -> Self:
        """The file of a segment of the log at `root`."""
        rows = sum(header.retained.records for header in segment.headers)
        return cls(root, segment.name, segment.file.size, rows)


class RowRange(NamedTuple):
    """Rows of one file: the records of a partition from offset `start` to before `stop`, which lie there among `rows`
    rows from row `row` on. An `OffsetRange` has one of them or more in each segment with its records.

    There is a row for each of the offsets, unless the log cleaner has removed some (`is_cleaned`). Then the rows are
    those of whole batches, and may have records at other offsets, too.
    """

    file: SegmentFile
    topic_id_partition: TopicIdPartition
    start: int
    stop: int
    row: int
    rows: int
    is_cleaned: bool = False

    @property
    def offsets(self) -> int:
        """The number of offsets: at least that of records."""
        return self.stop - self.start

    def part(self, start: int, stop: int) -> RowRange:
        """A part of the records, by offsets."""
        if self.is_cleaned:
            return self._replace(start=start, stop=stop)
        return self._replace(start=start, stop=stop, row=self.row + start - self.start, rows=stop - start)


def row_ranges(
    root: StorageRoot, segment: Segment, partition: TopicIdPartition, offsets: OffsetRange
) -> list[RowRange]:  # fmt: skip
    """The rows of a partition's records at these offsets in a segment of the log at `root`.

    They are several ranges only if other segments have records between them, or if the log cleaner has removed records
    of some of the batches.
    """
    file, found = SegmentFile.of(root, segment), list[RowRange]()
    rows = accumulate((header.retained.records for header in segment.headers), initial=0)
    for header, row in zip(segment.headers, rows, strict=False):
        first, last = max(offsets.start, header.base_offset), min(offsets.stop, header.next_offset)
        if header.topic_id_partition != partition or first >= last:
            continue
        if header.cleaned:
            each = RowRange(file, partition, first, last, row, header.cleaned.records, is_cleaned=True)
        else:
            each = RowRange(file, partition, first, last, row + first - header.base_offset, last - first)
        if found and found[-1].stop == first and found[-1].is_cleaned == each.is_cleaned:
            found[-1] = found[-1]._replace(stop=last, rows=found[-1].rows + each.rows)
        else:
            found.append(each)
    return found


def read_row_ranges(
    file: SegmentFile, ranges: Sequence[RowRange], columns: Sequence[str] = LOG.names, use_threads: bool = True
) -> list[pa.Table]:
    """The records of each range of one file: its pieces, joined. Parameters and errors as for `row_pieces`."""
    pieces: list[list[pa.Table]] = [[] for _ in ranges]
    for number, _, records in row_pieces(file, ranges, columns, use_threads):
        pieces[number].append(records)
    return [pa.concat_tables(each) for each in pieces]


class RowPiece(NamedTuple):
    """Records of the range with this number, and the part of the range that they are."""

    number: int
    part: RowRange
    records: pa.Table


def row_pieces(
    file: SegmentFile, ranges: Sequence[RowRange], columns: Sequence[str] = LOG.names, use_threads: bool = True
) -> Iterator[RowPiece]:
    """The records of ranges of one file, piece by piece. They have these columns of `schemas.LOG`. Each range has one
    piece or more, in the order of offsets, which is also the order within a piece. The checksum of each page is
    verified.

    A piece has rows of one row group, and the next row group can have its memory. All are read at once where the log
    cleaner has removed records, and where a few rows are wanted of a file that takes requests. The pieces of a row
    group share memory, unless they are a small part of it. Without `use_threads` it takes one core.

    Raises CorruptRecordException, naming the file, and KafkaStorageException if the store does not return the file.
    What was given before is right.
    """
    root, name = file.root, file.name
    names = [name for name in LOG.names if name in columns or name in _CHECKED]
    schema, left = pa.schema([LOG.arrow.field(name) for name in columns]), dict(enumerate(ranges))
    try:
        is_whole = file.size < _WHOLE_BYTES or 2 * sum(each.rows for each in ranges) >= file.rows
        by_requests = not (is_whole or root.is_local)
        with pa.BufferReader(root.read_buffer(name)) if is_whole else root.open(name, file.size) as source:
            parquet = pq.ParquetFile(
                source, page_checksum_verification=True, pre_buffer=by_requests, read_dictionary=["topic_id"]
            )
            at_once = by_requests or any(each.is_cleaned for each in ranges)
            for number, part, rows in _planned_pieces(parquet, ranges, names, use_threads, at_once):
                if not _is_range(part, rows):
                    break
                if part.stop < left[number].stop:
                    left[number] = left[number].part(part.stop, left[number].stop)
                else:
                    del left[number]
                yield RowPiece(number, part, _within(part, rows).select(schema.names).cast(schema))
    except (OSError, pa.ArrowInvalid) as error:
        root.check_is_handed_out(name)
        raise CorruptRecordException(f"{root.path(name)}: {error}") from error
    if left:  # the file has other rows there: another tool may have written them in another order
        records = read_records(root, name)
        for number, part in left.items():
            found = rows_of(records, part.topic_id_partition, part.start, part.stop).sort_by("offset")
            yield RowPiece(number, part, found.select(schema.names).cast(schema))


def _planned_pieces(
    file: pq.ParquetFile, ranges: Sequence[RowRange], names: Sequence[str], use_threads: bool, at_once: bool
) -> Iterator[RowPiece]:
    """The rows where the ranges have them, of which there may be fewer if the file is not as its headers say."""
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    starts = [*accumulate(sizes, initial=0)]
    chosen = [n for n in range(len(sizes)) if _parts(ranges, starts[n], starts[n + 1])]
    for groups in [chosen] if at_once else [[n] for n in chosen]:
        parts = dict(enumerate(ranges)) if at_once else _parts(ranges, starts[groups[0]], starts[groups[0] + 1])
        table = file.read_row_groups(groups, columns=list(names), use_threads=use_threads)
        found = dict[int, pa.Table]()
        for number, part in parts.items():
            left_out = sum(size for n, size in enumerate(sizes) if starts[n] < part.row and n not in groups)
            found[number] = table.slice(part.row - left_out, part.rows)
        if 2 * sum(rows.num_rows for rows in found.values()) < table.num_rows:  # a slice keeps all of it in memory
            found = {number: rows.take(pa.arange(0, rows.num_rows)) for number, rows in found.items()}
        del table
        for number, part in parts.items():
            yield RowPiece(number, part, found.pop(number))


def _parts(ranges: Sequence[RowRange], first: int, stop: int) -> dict[int, RowRange]:
    """The parts of the ranges that lie in the rows `first` to before `stop`, by the number of the range."""
    found = dict[int, RowRange]()
    for number, each in enumerate(ranges):
        start, end = max(each.row, first), min(each.row + each.rows, stop)
        if start < end:
            found[number] = each.part(each.start + start - each.row, each.start + end - each.row)
    return found


def _is_range(wanted: RowRange, rows: pa.Table) -> bool:
    """Whether these are the rows of the range. A file of another tool may have them in another order."""
    if rows.num_rows != wanted.rows:
        return False
    if not rows.num_rows:
        return True
    key, partitions = wanted.topic_id_partition, pc.min_max(rows["partition"])
    topics = {rows["topic_id"][n].as_py() for n in (0, -1)}
    found = topics, partitions["min"].as_py(), partitions["max"].as_py()
    return _is_in_order(wanted, rows["offset"]) and found == ({key.topic_id}, key.partition, key.partition)


def _is_in_order(wanted: RowRange, offsets: pa.ChunkedArray) -> bool:
    if wanted.is_cleaned:
        return bool(pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py())
    return bool(pc.all(pc.equal(offsets, pa.arange(wanted.start, wanted.stop))).as_py())


def _within(wanted: RowRange, rows: pa.Table) -> pa.Table:
    """The rows at the offsets of the range."""
    if not wanted.is_cleaned:
        return rows
    return rows.filter(pc.and_(pc.greater_equal(rows["offset"], wanted.start), pc.less(rows["offset"], wanted.stop)))
