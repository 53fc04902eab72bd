"""Which segments of a log are to be put together: many small files, each of several partitions, become few of one.

A file belongs to a size class, each eight times as large as the one below. Small files are merged partition by
partition, together with what the partition has in the classes that the result falls into: so that a record is written
again once a class, and a partition has at most one file in each class afterwards. A file of half the segment size is
done. Kafka writes large segments to begin with; LSM trees merge like this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from replication.protocol.record_batch import TopicIdPartition

_SMALLEST = 64 * 1024
_FACTOR = 8


class LogFile(NamedTuple):
    """A segment: its size in bytes, and the bytes of each partition in it (of keys and values)."""

    name: str
    size: int
    partitions: Mapping[TopicIdPartition, int]

    @property
    def is_mixed(self) -> bool:
        """Whether it holds more than one partition."""
        return len(self.partitions) > 1


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
) -> tuple[LogFile, ...]:
    """The files to merge now, none if it is not worth it yet.

    Worth it means: at least `min_files` of the smallest class, or of one class above it, and the result at most half
    as many files. `max_bytes` bounds what is read at once; what is left over is merged the next time.
    """
    small = [file for file in files if size_class(file.size, segment_bytes) >= 0]
    by_class: dict[int, list[LogFile]] = {}
    for file in small:
        by_class.setdefault(size_class(file.size, segment_bytes), []).append(file)
    for number in sorted(by_class):
        chosen = _within(by_class[number], max_bytes)
        results = {partition for file in chosen for partition in file.partitions}
        if len(chosen) >= max(min_files, 2 * len(results)):
            return tuple(_with_neighbours(chosen, small, segment_bytes, max_bytes))
    return ()


def _within(files: Iterable[LogFile], max_bytes: int) -> list[LogFile]:
    chosen: list[LogFile] = []
    size = 0
    for file in files:
        size += file.size
        if chosen and size > max_bytes:
            break
        chosen.append(file)
    return chosen


def _with_neighbours(
    chosen: list[LogFile], small: Iterable[LogFile], segment_bytes: int, max_bytes: int
) -> list[LogFile]:
    """With the files of one partition that the partition's result would else lie beside, in the same class."""
    names, total = {file.name for file in chosen}, sum(file.size for file in chosen)
    sizes: Counter[TopicIdPartition] = Counter()
    for file in chosen:
        sizes.update(_shares(file))
    alone = sorted((f for f in small if f.name not in names and not f.is_mixed), key=lambda file: file.size)
    for file in alone:
        (partition,) = file.partitions
        result = size_class(sizes[partition], segment_bytes)
        is_beside = partition in sizes and (result < 0 or size_class(file.size, segment_bytes) <= result)
        if is_beside and total + file.size <= max_bytes:
            chosen, total = [*chosen, file], total + file.size
            sizes[partition] += file.size
    return chosen


def _shares(file: LogFile) -> dict[TopicIdPartition, int]:
    """How much of a file's size is whose."""
    whole = max(1, sum(file.partitions.values()))
    return {partition: file.size * share // whole for partition, share in file.partitions.items()}
