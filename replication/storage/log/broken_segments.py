"""Segments that are missing or do not match their commits, the partitions that they may hold, and the thread that reads
them again from time to time. [OL-01]

A broken file must affect only its own partitions. Its headers name them if they were read before it broke; otherwise
the statistics of its commit give a range. Kafka: a failed log directory. [OL-01]
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException, LakelogException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.data_file_name import is_data_file, is_snapshot, named_digest
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_opening import file_statistics
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.segment import Segment, read_file, read_records, read_segment, size_fault

_READERS = 8

logger = logging.getLogger(__name__)

HEAL_SECONDS = 10.0  # the interval at which a handle reads its broken files again


@dataclass(frozen=True)
class BrokenSegment:
    """A file, its fault, and the partitions that it holds; None if its headers were never read."""

    file: AddedFile
    fault: str
    partitions: frozenset[TopicIdPartition] | None = None

    def may_hold(self, partition: TopicIdPartition, topic: str | None, offset: int = 0) -> bool:
        """Whether the file may hold records of a partition at or after an offset. `topic` is the topic's name, None if
        unknown.

        A producer snapshot holds no records: without it a log forgets some duplicates, but loses no records.
        """
        if is_snapshot(self.file.name):
            return False
        if self.partitions is not None:
            return partition in self.partitions
        names = None if topic is None else (topic, topic)
        return SoughtRange(offset, (partition.partition, partition.partition), names).may_meet(self.file)


class SoughtRange(NamedTuple):
    """The least offset, the partitions and the topics of all records that are sought, the last two as the first and the
    last one; None for unknown names."""

    offset: int
    partitions: tuple[int, int]
    topics: tuple[str, str] | None

    @classmethod
    def of(cls, sought: Mapping[TopicIdPartition, int], topics: Mapping[TopicIdPartition, str]) -> SoughtRange:
        """The range of partitions, one at least, of which each is sought from an offset on. `topics`: the names that
        are known."""
        numbers, names = [partition.partition for partition in sought], {topics.get(p) for p in sought}
        known = [name for name in names if name is not None]
        is_known = len(known) == len(names)
        return cls(min(sought.values()), (min(numbers), max(numbers)), (min(known), max(known)) if is_known else None)

    def may_meet(self, file: AddedFile) -> bool:
        """Whether the file may hold such records, by the statistics of its commit."""
        stats = _parsed(file.stats)
        reaches = _overlaps({"maxValues": stats.get("maxValues", {})}, "offset", self.offset, self.offset)
        has_topic = self.topics is None or _overlaps(stats, "topic", *self.topics)
        return reaches and has_topic and _overlaps(stats, "partition", *self.partitions)


def _overlaps(stats: Mapping[str, Any], column: str, first: Any, last: Any) -> bool:
    """Whether the commit's range has a value from `first` to `last`. A column without a valid range may hold any."""
    least, most = (stats.get(end, {}).get(column) for end in ("minValues", "maxValues"))
    least, most = (limit if type(limit) is type(first) else None for limit in (least, most))
    return bool((least is None or least <= last) and (most is None or first <= most))


def _parsed(stats: str) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(stats)
    except ValueError:
        return {}
    given = found.items() if isinstance(found, dict) else ()
    return {name: part for name, part in given if isinstance(part, dict)}


def ranges(file: Mapping[str, Any]) -> str:
    """A data file's ranges as a commit has them, as JSON, from a row of delta-rs's flattened add actions."""
    columns, ends = ("topic", "partition", "offset"), {"minValues": "min", "maxValues": "max"}
    return json.dumps({name: {c: file.get(f"{end}.{c}") for c in columns} for name, end in ends.items()})


def read_segments(
    root: StorageRoot, files: Sequence[AddedFile], is_over: Callable[[], bool] = lambda: False
) -> list[Segment | BrokenSegment]:
    """Reads committed segments from their footers, several at a time; a broken one comes with its fault. Raises
    KafkaStorageException, also once `is_over` returns true, because their reader has been stopped."""

    def read(file: AddedFile) -> Segment | BrokenSegment:
        if is_over():
            raise KafkaStorageException(f"{root.uri}: its segments are not read to the end: the reader was stopped")
        return read_or_broken(root, file)

    return [read(file) for file in files] if len(files) <= _READERS else in_threads(read, files, _READERS)


def with_statistics(
    root: StorageRoot, version: int, segments: Sequence[Segment | BrokenSegment]
) -> list[Segment | BrokenSegment]:
    """Adds the table's statistics to broken segments. It opens the table at this version only if there is one. Raises
    KafkaStorageException for one that the table does not have any more."""
    if not any(isinstance(segment, BrokenSegment) for segment in segments):
        return list(segments)
    known = {file["path"]: ranges(file) for file in file_statistics(root, version)}
    unknown = [s.fault for s in segments if isinstance(s, BrokenSegment) and s.file.name not in known]
    if unknown:
        raise KafkaStorageException(f"{unknown[0]}; its table has no such file: it was put back or made again")
    return [
        replace(s, file=replace(s.file, stats=known[s.file.name])) if isinstance(s, BrokenSegment) else s
        for s in segments
    ]


def read_or_broken(root: StorageRoot, file: AddedFile) -> Segment | BrokenSegment:
    """Reads a committed segment; a broken one comes with its fault.

    A file is broken if it is missing, has another size, or cannot be parsed. Raises KafkaStorageException if the store
    does not return the file, because that error may be temporary.
    """
    try:
        return read_segment(root, file).light
    except CorruptRecordException as error:
        if not is_data_file(file.name):  # without a look-up: no writer of Lakelog puts a record there
            return BrokenSegment(file, str(error), frozenset())
    try:
        return read_segment(root, file.light)
    except CorruptRecordException as error:
        return BrokenSegment(file.light, str(error))


def check_content(root: StorageRoot, file: AddedFile) -> None:
    """Raises CorruptRecordException, naming the file, unless its bytes are those that were committed. A file of another
    tool has no digest, so its pages are read. Raises KafkaStorageException."""
    if named_digest(file.name) is None:
        read_records(root, file.name)
    else:
        read_file(root, file)


def read_again(root: StorageRoot, broken: BrokenSegment) -> Segment | None:
    """A broken segment that can be read again up to its last byte, since a footer alone may have been whole all along.
    None if it cannot be read now."""
    try:
        check_content(root, broken.file)
        found = read_or_broken(root, broken.file)
    except (CorruptRecordException, KafkaStorageException):
        return None
    return found if isinstance(found, Segment) else None


def find_faults(root: StorageRoot, segments: Mapping[str, Segment]) -> dict[str, str]:
    """Finds missing segments and segments of a wrong size, with one listing of the folder. Returns the fault of each by
    name.

    Raises KafkaStorageException if the folder cannot be listed.
    """
    sizes = root.sizes_listed()
    found = {name: size_fault(root, segment.file, sizes.get(name)) for name, segment in segments.items()}
    return {name: fault for name, fault in found.items() if fault}


class Healing:
    """The thread of one handle that calls `heal`, one call at a time. `heal` must not hold a lock while it reads."""

    def __init__(self, name: str, heal: Callable[[], object]) -> None:
        self._name = name
        self._heal = heal
        self._counted_from: float | None = None
        self._is_under_way = False

    def begin_if_due(self) -> None:
        """Calls `heal` in a thread, unless a call is running or `HEAL_SECONDS` have not passed since the last one began
        (at first: since the first call). Not for two threads at once."""
        now = time.monotonic()
        if self._counted_from is None:
            self._counted_from = now
        if not self._is_under_way and now - self._counted_from >= HEAL_SECONDS:
            thread = threading.Thread(target=self._run, name=f"healing of {self._name}", daemon=True)
            self._counted_from, self._is_under_way = now, True
            try:
                thread.start()
            except RuntimeError as error:  # there are too many threads: try again later
                self._is_under_way = False
                logger.warning("%s: cannot read broken files again: %s", self._name, error)

    def _run(self) -> None:
        try:
            self._heal()
        except LakelogException as error:
            logger.warning("%s: cannot read broken files again: %s", self._name, error)
        finally:
            self._is_under_way = False
