"""Finds the rows of a partition's records in a segment, and reads them: only the row groups that have them, and without
a copy. [FE-01]"""

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
    """The records of each range of one file. They have these columns of `schemas.LOG`, and the order of offsets. The
    checksum of each page is verified.

    The tables share memory, unless they are a small part of the rows that were read. Without `use_threads` it takes one
    core. Raises CorruptRecordException, naming the file, and KafkaStorageException if the store does not return the
    file.
    """
    root, name = file.root, file.name
    names = [name for name in LOG.names if name in columns or name in _CHECKED]
    try:
        is_whole = file.size < _WHOLE_BYTES or (not root.is_local and 2 * sum(r.rows for r in ranges) >= file.rows)
        with pa.BufferReader(root.read_buffer(name)) if is_whole else root.open(name, file.size) as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=not root.is_local)
            tables = _slices(parquet, ranges, names, use_threads)
    except (OSError, pa.ArrowInvalid) as error:
        root.check_is_handed_out(name)
        raise CorruptRecordException(f"{root.path(name)}: {error}") from error
    is_as_planned = all(map(_is_range, ranges, tables))
    found = map(_within, ranges, tables) if is_as_planned else _rows_in_any_order(root, name, ranges)
    return [table.select(list(columns)) for table in found]


def _slices(
    file: pq.ParquetFile, ranges: Sequence[RowRange], names: Sequence[str], use_threads: bool
) -> list[pa.Table]:  # fmt: skip
    """The rows of each range, of which there may be fewer if the file is not as its headers say."""
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    starts = [*accumulate(sizes, initial=0)]
    chosen = [
        n for n in range(len(sizes))
        if any(r.row < starts[n + 1] and starts[n] < r.row + r.rows for r in ranges)
    ]  # fmt: skip
    read = file.read_row_groups(chosen, columns=list(names), use_threads=use_threads)
    table = read.select(list(names)).cast(pa.schema([LOG.arrow.field(name) for name in names]))
    left_out = [sum(sizes[n] for n in range(len(sizes)) if starts[n] < r.row and n not in chosen) for r in ranges]
    parts = [table.slice(r.row - n, r.rows) for r, n in zip(ranges, left_out, strict=True)]
    if 2 * sum(part.num_rows for part in parts) >= table.num_rows:
        return parts
    return [part.take(pa.arange(0, part.num_rows)) for part in parts]  # slices would keep all of the memory alive


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


def _rows_in_any_order(root: StorageRoot, name: str, ranges: Sequence[RowRange]) -> Iterator[pa.Table]:
    records = read_records(root, name)
    for wanted in ranges:
        yield rows_of(records, wanted.topic_id_partition, wanted.start, wanted.stop).sort_by("offset")
