"""Plans compactions: which small segments of a log to merge, and into which larger ones.

Each size class is eight times as large as the one below. A compaction merges small files of several partitions into
files of one partition each. A result also takes in that partition's own files of the result's size class and below. So
a record is rewritten about once a class, and a partition usually ends with at most one file in each class. Files of at
least half the segment size are left alone. Kafka writes large segments from the beginning; LSM trees merge in this way.

All sizes are file sizes in bytes; a batch counts as its share of its file. Records in memory may be many times larger.
If results were split by that measure, they would be as small as their sources and be merged for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition

_SMALLEST = 64 * 1024
_FACTOR = 8


class LogFile(NamedTuple):
    """A segment: its name, its size in bytes, and the headers of its batches."""

    name: str
    size: int
    headers: Sequence[BatchHeader]

    @property
    def partitions(self) -> set[TopicIdPartition]:
        """The partitions of its batches."""
        return {header.topic_id_partition for header in self.headers}

    def shares(self) -> Iterator[tuple[BatchHeader, int]]:
        """Each batch with its share of the file's size in bytes, in proportion to the size of its records."""
        whole = sum(map(_weight, self.headers))
        return ((header, self.size * _weight(header) // whole) for header in self.headers)


def _weight(header: BatchHeader) -> int:
    return header.retained.bytes + max(1, header.retained.records)


# The batches of one new file, each with the file that it lies in.
Pack = list[tuple[LogFile, BatchHeader]]


class Compaction(NamedTuple):
    """The files to merge, and the batches of each new file."""

    files: tuple[LogFile, ...]
    packs: tuple[Pack, ...]


def size_class(size: int, segment_bytes: int) -> int:
    """The size class of a file of `size` bytes, from 0 up; -1 if it has at least half of `segment_bytes`. [NA-04]"""
    if size >= segment_bytes // 2:
        return -1
    found, limit = 0, _SMALLEST
    while size >= limit:
        found, limit = found + 1, limit * _FACTOR
    return found


def plan_compaction(
    files: Collection[LogFile], segment_bytes: int, min_files: int, max_bytes: int
) -> Compaction | None:
    """The next compaction; None if none is worthwhile yet.

    A compaction needs at least `min_files` files of one class, and produces at most half as many files as it reads. So
    each one makes progress. Lower classes go first. `max_bytes` limits what one compaction reads, as files and as
    records; the next one merges the rest. [NA-04]
    """
    small = [file for file in files if size_class(file.size, segment_bytes) >= 0]
    by_class: dict[int, list[LogFile]] = {}
    for file in small:
        by_class.setdefault(size_class(file.size, segment_bytes), []).append(file)
    for number in sorted(by_class):
        if len(by_class[number]) < min_files:
            continue
        chosen = _within(by_class[number], max_bytes)
        for candidates in (_with_neighbours(chosen, small, segment_bytes, max_bytes), chosen):
            packs = _packs(candidates, segment_bytes)
            if 2 * len(packs) <= len(candidates):
                return Compaction(tuple(candidates), tuple(packs))
    return None


def _read_bytes(file: LogFile) -> int:
    return max(file.size, sum(header.retained.bytes for header in file.headers))


def _within(files: Iterable[LogFile], max_bytes: int) -> list[LogFile]:
    chosen: list[LogFile] = []
    size = 0
    for file in files:
        size += _read_bytes(file)
        if chosen and size > max_bytes:
            break
        chosen.append(file)
    return chosen


def _with_neighbours(
    chosen: list[LogFile], small: Iterable[LogFile], segment_bytes: int, max_bytes: int
) -> list[LogFile]:
    """Adds a partition's own files that are in the class of its result or a smaller one; otherwise the partition would
    end with two files in one class."""
    names, total = {file.name for file in chosen}, sum(map(_read_bytes, chosen))
    sizes: Counter[TopicIdPartition] = Counter()
    for file in chosen:
        for header, share in file.shares():
            sizes[header.topic_id_partition] += share
    alone = sorted((f for f in small if f.name not in names and len(f.partitions) == 1), key=lambda file: file.size)
    for file in alone:
        (partition,) = file.partitions
        result = size_class(sizes[partition], segment_bytes)
        is_beside = partition in sizes and (result < 0 or size_class(file.size, segment_bytes) <= result)
        if is_beside and total + _read_bytes(file) <= max_bytes:
            chosen, total = [*chosen, file], total + _read_bytes(file)
            sizes[partition] += file.size
    return chosen


def _packs(files: Iterable[LogFile], segment_bytes: int) -> list[Pack]:
    """Groups the batches into new files of one partition, each at most `segment_bytes` unless it is a single batch."""
    placed = [(header, share, file) for file in files for header, share in file.shares()]
    packs: list[Pack] = []
    partition, size = None, 0
    for header, share, file in sorted(placed, key=lambda item: (item[0].topic_id_partition, item[0].base_offset)):
        if header.topic_id_partition != partition or size + share > segment_bytes:
            packs.append([])
            partition, size = header.topic_id_partition, 0
        packs[-1].append((file, header))
        size += share
    return packs
