"""One fetch of committed records from the logs of their leaders, or of in-sync replicas that are nearer, and how it
waits.

Kafka: `Fetcher`, `ReplicaManager.fetchMessages`. KIP-392. [FE-01, FE-02, DO-02]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, NamedTuple, Self, TypeVar

import pyarrow as pa

from lakelog.replication.clients.purgatory import DelayedOperation, Purgatory
from lakelog.replication.clients.readable_partition import ReadablePartition, ReplicaSelector
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import LakelogException, error_or
from lakelog.replication.protocol.delayed_operation import (
    batches_within,
    check_fetch_offset,
    check_log_leads,
    fetch_outcome,
)
from lakelog.replication.protocol.fencing import check_leader_row
from lakelog.replication.protocol.partition_log import PartitionLog, PlacedBatch
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition, TopicPartition
from lakelog.replication.protocol.replica_status import Leadership
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.partition_rows import RowRange, read_row_ranges, row_ranges
from lakelog.replication.storage.log.segment import Segment
from lakelog.schemas import LOG

_FILES_AT_A_TIME = 8


class WantedRows(NamedTuple):
    """The records of a partition from offset `start` to before `stop`, and the segments of the log in `root` that have
    them."""

    root: StorageRoot
    segments: Sequence[Segment]
    topic_id_partition: TopicIdPartition
    start: int
    stop: int


Key = TypeVar("Key", bound=Hashable)


class _File(NamedTuple, Generic[Key]):
    """A segment, and the wanted ranges in it with the keys of those who want them."""

    root: StorageRoot
    segment: Segment
    ranges: list[RowRange]
    keys: list[Key]


def read_rows(wanted: Mapping[Key, WantedRows]) -> dict[Key, pa.Table | LakelogException]:
    """The wanted records in the order of offsets, with the columns of `schemas.LOG`, or the error of their segments."""
    parts: dict[Key, list[tuple[int, pa.Table]]] = {key: [] for key in wanted}
    errors: dict[Key, LakelogException] = {}
    for key, start, read in (part for file in in_threads(_read, _files(wanted), _FILES_AT_A_TIME) for part in file):
        if isinstance(read, LakelogException):
            errors.setdefault(key, read)
        else:
            parts[key].append((start, read))
    return {key: errors.get(key) or _joined(found) for key, found in parts.items()}


def _files(wanted: Mapping[Key, WantedRows]) -> list[_File[Key]]:
    files: dict[tuple[str, str], _File[Key]] = {}
    for key, (root, segments, partition, start, stop) in wanted.items():
        for segment in segments:
            file = files.setdefault((root.uri, segment.name), _File(root, segment, [], []))
            found = row_ranges(segment.headers, partition, start, stop)
            file.ranges.extend(found)
            file.keys.extend([key] * len(found))
    return [file for file in files.values() if file.ranges]


def _read(file: _File[Key]) -> list[tuple[Key, int, pa.Table | LakelogException]]:
    try:
        rows = sum(header.records for header in file.segment.headers)
        tables = read_row_ranges(file.root, file.segment.name, file.segment.file.size, rows, file.ranges)
    except LakelogException as error:
        return [(key, each.start, error) for key, each in zip(file.keys, file.ranges, strict=True)]
    return [(key, each.start, table) for key, each, table in zip(file.keys, file.ranges, tables, strict=True)]


def _joined(parts: list[tuple[int, pa.Table]]) -> pa.Table:
    ordered = [table for _, table in sorted(parts, key=lambda part: part[0])]
    return pa.concat_tables(ordered) if ordered else LOG.arrow.empty_table()


@dataclass(frozen=True)
class FetchedRecords:
    """The result of a fetch from one partition: records (columns of `lakelog.schemas.LOG`), or an error.

    With an error, high watermark and log start are -1. `topic_id`: of the topic that the offsets belong to; "" with an
    error. Kafka: `FetchPartitionData`.
    """

    records: pa.Table = field(default_factory=LOG.arrow.empty_table)
    high_watermark: int = -1
    log_start_offset: int = -1
    error: LakelogException | None = None
    topic_id: str = ""


def fetch_records(
    view: TopicView, offsets: Mapping[TopicPartition, int], min_bytes: int, max_wait_ms: float, max_bytes: int,
    rack: str | None = None, topic_ids: Mapping[str, str] | None = None,
) -> dict[TopicPartition, FetchedRecords]:  # fmt: skip
    """The records of each partition from its offset to the HW, or its error; see `Consumer.fetch`. `rack`: where the
    reader is. An in-sync replica there is read up to its own HW, if it has the offset and its files can be read, and
    else the leader. `topic_ids`: the topics that the offsets belong to, by name; a topic that it lacks is the one that
    is there at the call."""
    deadline = time.monotonic() + max_wait_ms / 1000
    try:
        fetch = _DelayedFetch(view, offsets, min_bytes, max_bytes, rack, topic_ids or {})
        purgatory = Purgatory[TopicPartition]()
        purgatory.try_complete_else_watch(DelayedOperation(offsets, deadline, fetch.attempt))
        purgatory.wait(fetch.moved, view.cluster.config.lakelog_poll_interval_ms)
    except LakelogException as error:
        return {partition: FetchedRecords(error=error) for partition in offsets}
    return fetch.answers


def led_log(seen: Leadership, refreshed: Callable[[int], LogState]) -> PartitionLog:
    """The partition's log at its leader, read after the leader's row. Raises why it has no leader, or not yet."""
    registration, row = seen.registration, seen.row
    name = registration.name
    if seen.unavailable and (seen.error or registration.leader == NO_LEADER):
        raise seen.unavailable
    error = check_leader_row(row, registration.topic_id_partition, registration.leader_epoch)
    if error:
        raise error
    log = refreshed(registration.leader).partition(registration.topic_id_partition)
    if row:
        check_log_leads(log, row, name)
    return log


class _Readable(NamedTuple):
    """The batches between a fetch offset and the HW, in a log whose replica was checked."""

    registration: PartitionRegistration
    batches: list[PlacedBatch]
    high_watermark: int
    log_start_offset: int
    root: StorageRoot
    segments: Mapping[str, Segment]

    @classmethod
    def of(cls, near: ReadablePartition, offset: int) -> Self:
        """The batches of a replica in the reader's rack."""
        batches = near.log.batches_between(offset, near.high_watermark)
        return cls(
            near.registration, batches, near.high_watermark, near.log.log_start_offset, near.root, near.state.segments
        )

    @property
    def sizes(self) -> list[int]:
        """The bytes of each batch, at least 1: otherwise a fetch would never return a batch of empty records."""
        return [max(1, batch.header.bytes) for batch in self.batches]

    def wanted(self, offset: int, count: int) -> WantedRows:
        """The rows of the first `count` batches from `offset` to the HW, in the files of the version that was
        checked."""
        batches = self.batches[:count]
        stop = min(self.high_watermark, batches[-1].header.next_offset if batches else offset)
        segments = [self.segments[name] for name in dict.fromkeys(batch.segment for batch in batches)]
        return WantedRows(self.root, segments, self.registration.topic_id_partition, offset, stop)


class _DelayedFetch:
    """One fetch. It ends when `answers` has an entry for each partition."""

    def __init__(
        self, view: TopicView, offsets: Mapping[TopicPartition, int], min_bytes: int, max_bytes: int,
        rack: str | None, topic_ids: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.answers: dict[TopicPartition, FetchedRecords] = {}
        self._view = view
        self._offsets = offsets
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._rack = rack
        self._near: dict[TopicPartition, ReadablePartition] = {}  # read last, instead of the leader
        self._broken: set[TopicPartition] = set()  # those of which only the leader is read, as a file could not be
        self._watches: dict[str, TopicWatch | LakelogException] = {}
        for topic in {partition.topic for partition in offsets}:
            self._watches[topic] = self._watch(topic, topic_ids.get(topic))

    def _watch(self, topic: str, topic_id: str | None) -> TopicWatch | LakelogException:
        try:
            return TopicWatch(self._view, topic, [p.partition for p in self._offsets if p.topic == topic], topic_id)
        except LakelogException as error:
            return error

    def moved(self) -> set[TopicPartition]:
        """Reads again and returns the partitions that have changed since the last read."""
        watches = [(topic, watch) for topic, watch in self._watches.items() if isinstance(watch, TopicWatch)]
        led = {TopicPartition(topic, number) for topic, watch in watches for number in watch.moved()}
        return led | {partition for partition, near in self._near.items() if self._row(near) != near.row}

    def _row(self, near: ReadablePartition) -> object:
        rows = error_or(self._view.replicas, near.row.broker_id, RECENT_SECONDS)
        return rows if isinstance(rows, LakelogException) else rows.get(near.registration.topic_id_partition)

    def attempt(self, time_is_over: bool) -> bool:
        refreshed = cache(self._refreshed)
        self._near = self._find_near()
        found = {partition: self._poll(partition, offset, refreshed) for partition, offset in self._offsets.items()}
        readable = [f if isinstance(f, LakelogException) else sum(f.sizes) for f in found.values()]
        outcome = fetch_outcome(readable, self._min_bytes, self._max_bytes, time_is_over)
        if not outcome.is_done:
            return False
        self.answers = self._read(found)
        broken = {partition for partition in self._near if self.answers[partition].error}
        self._broken |= broken
        return not broken or self.attempt(time_is_over)

    def _find_near(self) -> dict[TopicPartition, ReadablePartition]:
        """The replicas that are read instead of leaders: those in the reader's rack that have the offset."""
        if self._rack is None:
            return {}
        selector, chosen = ReplicaSelector(self._view, self._rack), dict[TopicPartition, ReadablePartition]()
        for partition, offset in self._offsets.items():
            if partition in self._broken:
                continue
            watch = self._watches[partition.topic]
            seen = error_or(watch.leadership, partition.partition) if isinstance(watch, TopicWatch) else None
            near = selector.in_rack(seen.registration) if isinstance(seen, Leadership) else None
            if near and near.log.log_start_offset <= offset <= near.high_watermark:
                chosen[partition] = near
        return chosen

    def _refreshed(self, leader: int) -> tuple[StorageRoot, LogState]:
        log = self._view.log(leader)
        return log.root, log.refresh()

    def _poll(
        self, partition: TopicPartition, offset: int, refreshed: Callable[[int], tuple[StorageRoot, LogState]]
    ) -> _Readable | LakelogException:
        """Reads the HW first and then the log, never the other way round."""
        watch = self._watches[partition.topic]
        if isinstance(watch, LakelogException):
            return watch
        if partition in self._near:
            return _Readable.of(self._near[partition], offset)
        try:
            seen = watch.leadership(partition.partition)
            log = led_log(seen, lambda leader: refreshed(leader)[1])
            check_fetch_offset(offset, log, f"{partition.topic}-{partition.partition}")
        except LakelogException as error:
            return error
        high_watermark = seen.row.high_watermark if seen.row else 0
        batches = log.batches_between(offset, high_watermark)
        root, state = refreshed(seen.registration.leader)
        return _Readable(seen.registration, batches, high_watermark, log.log_start_offset, root, state.segments)

    def _read(
        self, found: Mapping[TopicPartition, _Readable | LakelogException]
    ) -> dict[TopicPartition, FetchedRecords]:
        wanted, room, is_first = dict[TopicPartition, WantedRows](), self._max_bytes, True
        for partition, polled in found.items():
            if not isinstance(polled, LakelogException):
                count = batches_within(polled.sizes, room, is_first)
                room, is_first = room - sum(polled.sizes[:count]), is_first and not count
                wanted[partition] = polled.wanted(self._offsets[partition], count)
        rows = read_rows(wanted)
        return {
            partition: FetchedRecords(error=polled)
            if isinstance(polled, LakelogException)
            else _answer(polled, rows[partition])
            for partition, polled in found.items()
        }


def _answer(polled: _Readable, rows: pa.Table | LakelogException) -> FetchedRecords:
    if isinstance(rows, LakelogException):
        return FetchedRecords(error=rows)
    topic_id = polled.registration.topic_id
    return FetchedRecords(rows, polled.high_watermark, polled.log_start_offset, topic_id=topic_id)
