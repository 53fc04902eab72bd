"""Which segments of a log are to be put together: many small files, each of several partitions, become few of one.

A file belongs to a size class, each eight times as large as the one below. Small files are merged partition by
partition, together with what the partition has in the classes that the result falls into: so that a record is written
again once a class, and a partition has at most one file in each class afterwards. A file of half the segment size is
done. Kafka writes large segments to begin with; LSM trees merge like this.

All sizes are bytes of files: a batch counts as its share of the file that it lies in. Records in memory may be many
times as large, and a result that was split by that measure would be as small as its sources, and merged for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition

_SMALLEST = 64 * 1024
_FACTOR = 8


class LogFile(NamedTuple):
    """A segment: its size in bytes, and the headers of its batches."""

    name: str
    size: int
    headers: Sequence[BatchHeader]

    @property
    def partitions(self) -> set[TopicIdPartition]:
        """The partitions that it holds batches of."""
        return {header.topic_id_partition for header in self.headers}

    def shares(self) -> Iterator[tuple[BatchHeader, int]]:
        """Each batch, and how many bytes of the file are its own, by the size of its records."""
        whole = sum(map(_weight, self.headers))
        return ((header, self.size * _weight(header) // whole) for header in self.headers)


def _weight(header: BatchHeader) -> int:
    return header.bytes + header.records


# The batches of one new file, each with the file that it lies in.
Pack = list[tuple[LogFile, BatchHeader]]


class Compaction(NamedTuple):
    """The files to merge, and what each new file is to hold."""

    files: tuple[LogFile, ...]
    packs: tuple[Pack, ...]


def size_class(size: int, segment_bytes: int) -> int:
    """The class of a file: -1 for one that is large enough to be left alone. [NA-04]"""
    if size >= segment_bytes // 2:
        return -1
    found, limit = 0, _SMALLEST
    while size >= limit:
        found, limit = found + 1, limit * _FACTOR
    return found


def plan_compaction(
    files: Collection[LogFile], segment_bytes: int, min_files: int, max_bytes: int
) -> Compaction | None:
    """What to merge now, None if nothing is worth it yet.

    Worth it means: at least `min_files` of the smallest class, or of one class above it, and the result at most half
    as many files; so every compaction makes progress. `max_bytes` bounds what is read at once, as files and as
    records; what is left over is merged the next time. [NA-04]
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
    return max(file.size, sum(header.bytes for header in file.headers))


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
    """With the files of one partition that the partition's result would else lie beside, in the same class."""
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
    """The batches in new files, each of one partition and of a segment's size at most, unless one batch is larger."""
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
