"""Reads the records of partitions from a segment: only the row groups that have them, and without a copy. [FE-01]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import read_records, rows_of
from lakelog.schemas import LOG

# A smaller file is read as a whole. In an object store its footer alone would take as long; and a file that is wanted
# for the most part is read by one request there.
_WHOLE_BYTES = 4 << 20
_CHECKED = ("partition", "offset", "topic_id")


class RowRange(NamedTuple):
    """The records of a partition from offset `start` to before `stop`. They begin in row `row` of their segment, and
    lie there one after the other."""

    topic_id_partition: TopicIdPartition
    start: int
    stop: int
    row: int


def row_ranges(headers: Sequence[BatchHeader], partition: TopicIdPartition, start: int, stop: int) -> list[RowRange]:
    """The rows of a partition's records from offset `start` to before `stop`, in a segment with these headers.

    They are several ranges only if other segments have records between them.
    """
    found: list[RowRange] = []
    for header, row in zip(headers, accumulate((h.records for h in headers), initial=0), strict=False):
        first, last = max(start, header.base_offset), min(stop, header.next_offset)
        if header.topic_id_partition != partition or first >= last:
            continue
        if found and found[-1].stop == first:
            found[-1] = found[-1]._replace(stop=last)
        else:
            found.append(RowRange(partition, first, last, row + first - header.base_offset))
    return found


def read_row_ranges(
    root: StorageRoot, name: str, size: int, rows: int, ranges: Sequence[RowRange], columns: Sequence[str] = LOG.names,
    use_threads: bool = True,
) -> list[pa.Table]:  # fmt: skip
    """The records of each range of a segment that has `size` bytes and so many rows. They have these columns of
    `schemas.LOG`, and the order of offsets. The checksum of each page is verified.

    The tables share memory, unless they are a small part of the rows that were read. Without `use_threads` it takes one
    core. Raises CorruptRecordException, naming the file, and KafkaStorageException if the store does not return the
    file.
    """
    names = [name for name in LOG.names if name in columns or name in _CHECKED]
    try:
        is_whole = size < _WHOLE_BYTES or (not root.is_local and 2 * sum(r.stop - r.start for r in ranges) >= rows)
        with pa.BufferReader(root.read_buffer(name)) if is_whole else root.open(name, size) as source:
            file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=not root.is_local)
            tables = _slices(file, ranges, names, use_threads)
    except (OSError, pa.ArrowInvalid) as error:
        root.check_is_handed_out(name)
        raise CorruptRecordException(f"{root.path(name)}: {error}") from error
    is_as_planned = all(map(_is_range, ranges, tables))
    found = tables if is_as_planned else _rows_in_any_order(root, name, ranges)
    return [table.select(list(columns)) for table in found]


def _slices(
    file: pq.ParquetFile, ranges: Sequence[RowRange], names: Sequence[str], use_threads: bool
) -> list[pa.Table]:  # fmt: skip
    """The rows of each range, of which there may be fewer if the file is not as its headers say."""
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
    starts = [*accumulate(sizes, initial=0)]
    chosen = [
        n for n in range(len(sizes))
        if any(r.row < starts[n + 1] and starts[n] < r.row + r.stop - r.start for r in ranges)
    ]  # fmt: skip
    read = file.read_row_groups(chosen, columns=list(names), use_threads=use_threads)
    table = read.select(list(names)).cast(pa.schema([LOG.arrow.field(name) for name in names]))
    left_out = [sum(sizes[n] for n in range(len(sizes)) if starts[n] < r.row and n not in chosen) for r in ranges]
    parts = [table.slice(r.row - n, r.stop - r.start) for r, n in zip(ranges, left_out, strict=True)]
    if 2 * sum(part.num_rows for part in parts) >= table.num_rows:
        return parts
    return [part.take(pa.arange(0, part.num_rows)) for part in parts]  # slices would keep all of the memory alive


def _is_range(wanted: RowRange, rows: pa.Table) -> bool:
    """Whether these are the rows of the range. A file of another tool may have them in another order."""
    if rows.num_rows != wanted.stop - wanted.start:
        return False
    key, partitions = wanted.topic_id_partition, pc.min_max(rows["partition"])
    topics = {rows["topic_id"][n].as_py() for n in (0, -1)}
    is_in_order = pc.all(pc.equal(rows["offset"], pa.arange(wanted.start, wanted.stop))).as_py()
    found = topics, partitions["min"].as_py(), partitions["max"].as_py()
    return is_in_order and found == ({key.topic_id}, key.partition, key.partition)


def _rows_in_any_order(root: StorageRoot, name: str, ranges: Sequence[RowRange]) -> Iterator[pa.Table]:
    records = read_records(root, name)
    for wanted in ranges:
        yield rows_of(records, wanted.topic_id_partition, wanted.start, wanted.stop).sort_by("offset")
