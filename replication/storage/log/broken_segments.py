"""Segments of a log whose files are gone, or are not what their commits say, and the partitions that they may hold.

One broken file must take only its own partitions with it. Which these are, its headers tell if they were read before it
broke; otherwise the statistics of its commit do, which name a range. Kafka: a failed log directory. [OL-01]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_reader import AddedFile
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import Segment, read_file, read_records, read_segment, size_fault
from lakelog.replication.storage.log.segment_name import is_data_file, is_snapshot, named_digest

_READERS = 8


@dataclass(frozen=True)
class BrokenSegment:
    """A file, what is wrong with it, and the partitions that it holds; None where its headers were never read."""

    file: AddedFile
    fault: str
    partitions: frozenset[TopicIdPartition] | None = None

    def may_hold(self, partition: TopicIdPartition, topic: str | None, offset: int = 0) -> bool:
        """Whether the file may hold records of a partition, at or after an offset. `topic` is its topic's name, None if
        that is not known.

        One that only remembers producers holds none: without it a log knows less of repeats, and no fewer records.
        """
        if is_snapshot(self.file.name):
            return False
        if self.partitions is not None:
            return partition in self.partitions
        stats = _parsed(self.file.stats)
        is_in_range = _lies_within(stats, "partition", partition.partition)
        ends_before = not _lies_within({"maxValues": stats.get("maxValues", {})}, "offset", offset)
        return is_in_range and not ends_before and (topic is None or _lies_within(stats, "topic", topic))


def _lies_within(stats: Mapping[str, Any], column: str, value: Any) -> bool:
    """By the range that a commit gives; a column without one, or with nonsense for one, may hold anything."""
    least, most = (stats.get(end, {}).get(column) for end in ("minValues", "maxValues"))
    least, most = (limit if type(limit) is type(value) else None for limit in (least, most))
    return bool((least is None or least <= value) and (most is None or value <= most))


def _parsed(stats: str) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(stats)
    except ValueError:
        return {}
    given = found.items() if isinstance(found, dict) else ()
    return {name: part for name, part in given if isinstance(part, dict)}


def ranges(file: Mapping[str, Any]) -> str:
    """The ranges of a data file as a commit has them, from a row of Delta's flat table of added files."""
    columns, ends = ("topic", "partition", "offset"), {"minValues": "min", "maxValues": "max"}
    return json.dumps({name: {c: file.get(f"{end}.{c}") for c in columns} for name, end in ends.items()})


def read_segments(root: StorageRoot, files: Sequence[AddedFile]) -> list[Segment | BrokenSegment]:
    """Committed segments, from their footers, several at a time; or what is wrong with them."""
    if len(files) <= _READERS:
        return [read_or_broken(root, file) for file in files]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda file: read_or_broken(root, file), files))


def with_statistics(
    segments: Sequence[Segment | BrokenSegment], statistics: Callable[[], Iterable[Mapping[str, Any]]]
) -> list[Segment | BrokenSegment]:
    """Segments as they are, but broken ones with what the table says of their files; that is asked for only then."""
    if not any(isinstance(segment, BrokenSegment) for segment in segments):
        return list(segments)
    known = {file["path"]: ranges(file) for file in statistics()}
    return [
        replace(s, file=replace(s.file, stats=known[s.file.name])) if isinstance(s, BrokenSegment) else s
        for s in segments
    ]


def read_or_broken(root: StorageRoot, file: AddedFile) -> Segment | BrokenSegment:
    """A committed segment, or what is wrong with it.

    Broken is a file that is gone, has another size, or is handed out and makes no sense. Raises KafkaStorageException
    where the store does not hand it out: that may pass.
    """
    try:
        return read_segment(root, file)
    except CorruptRecordException as error:
        if not is_data_file(file.name):  # it is not even looked for; none of our writers has put a record there
            return BrokenSegment(file, str(error), frozenset())
    try:
        return read_segment(root, file)
    except CorruptRecordException as error:
        return BrokenSegment(file, str(error))


def check_content(root: StorageRoot, file: AddedFile) -> None:
    """Raises CorruptRecordException, naming the file, unless its bytes are those that were committed. One of another
    tool tells no digest: its pages are read."""
    if named_digest(file.name) is None:
        read_records(root, file.name)
    else:
        read_file(root, file)


def read_again(root: StorageRoot, broken: BrokenSegment) -> Segment | None:
    """A broken segment that can be read again, to its last byte: a footer alone may be in order all along. None if it
    cannot, or cannot now."""
    try:
        check_content(root, broken.file)
        found = read_or_broken(root, broken.file)
    except (CorruptRecordException, KafkaStorageException):
        return None
    return found if isinstance(found, Segment) else None


def find_faults(root: StorageRoot, segments: Mapping[str, Segment]) -> dict[str, str]:
    """What one listing of the folder says is wrong with segments of a log, by name: gone, or of another size.

    Raises KafkaStorageException where the folder cannot be listed.
    """
    sizes = root.sizes_listed()
    found = {name: size_fault(root, segment.file, sizes.get(name)) for name, segment in segments.items()}
    return {name: fault for name, fault in found.items() if fault}
