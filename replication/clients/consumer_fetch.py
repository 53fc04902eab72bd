"""One fetch of committed records from the logs of their leaders, or of in-sync replicas that are nearer, and how it
waits.

Kafka: `Fetcher`, `ReplicaManager.fetchMessages`. KIP-392. [FE-01, FE-02, DO-02]
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Self, TypeVar

import pyarrow as pa

from lakelog.replication.clients.partition_reader import OpenPartition, PartitionReader
from lakelog.replication.clients.purgatory import DelayedOperation, Purgatory
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import LakelogException, error_or
from lakelog.replication.protocol.delayed_operation import (
    batches_within,
    check_fetch_offset,
    fetch_outcome,
)
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import OffsetRange, TopicPartition
from lakelog.replication.protocol.replica_status import Leadership
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.partition_rows import RowRange, read_row_ranges
from lakelog.schemas import LOG

_FILES_AT_A_TIME = 8


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class FetchedRecords:
    """The result of a fetch from one partition: records (columns of `lakelog.schemas.LOG`), or an error.

    With an error, high watermark and log start are -1. `topic_id`: of the topic that the offsets belong to; "" with an
    error. `next_offset`: where the next fetch goes on; the log cleaner may have removed records before it, also all of
    them; -1 with an error. Kafka: `FetchPartitionData`; `CompletedFetch.nextFetchOffset`.
    """

    records: pa.Table = field(default_factory=LOG.arrow.empty_table)
    high_watermark: int = -1
    log_start_offset: int = -1
    error: LakelogException | None = None
    topic_id: str = ""
    next_offset: int = -1


def fetch_records(
    view: TopicView, offsets: Mapping[TopicPartition, int], min_bytes: int, max_wait_ms: float, max_bytes: int,
    rack: str | None = None, topic_ids: Mapping[str, str] | None = None,
) -> dict[TopicPartition, FetchedRecords]:  # fmt: skip
    """The records of each partition from its offset to the HW, or its error; see `Consumer.fetch`.

    `rack`: that of the reader. An in-sync replica there is read up to its own HW, if it has the offset and its files
    can be read; otherwise the leader is read. `topic_ids`: by name, the ids of the topics that the offsets belong to.
    For a name that it lacks, they belong to the topic that has the name at the call.
    """
    deadline = time.monotonic() + max_wait_ms / 1000
    try:
        fetch = _DelayedFetch(view, offsets, min_bytes, max_bytes, rack, topic_ids or {})
        purgatory = Purgatory[TopicPartition]()
        purgatory.try_complete_else_watch(DelayedOperation(offsets, deadline, fetch.attempt))
        purgatory.wait(fetch.moved, view.cluster.config.lakelog_poll_interval_ms)
    except LakelogException as error:
        return {partition: FetchedRecords(error=error) for partition in offsets}
    return fetch.answers


class _Readable(NamedTuple):
    """The batches between a fetch offset and the HW of an open partition."""

    opened: OpenPartition
    batches: list[PlacedBatch]

    @classmethod
    def of(cls, opened: OpenPartition, offset: int) -> Self:
        """The batches from an offset on."""
        return cls(opened, opened.log.batches_between(offset, opened.high_watermark))

    @property
    def sizes(self) -> list[int]:
        """The bytes of each batch, at least 1: otherwise a fetch would never return a batch of empty records."""
        return [max(1, batch.header.retained.bytes) for batch in self.batches]

    def range_of(self, offset: int, count: int) -> OffsetRange:
        """The offsets of the first `count` batches from `offset` to the HW."""
        stop = self.batches[count - 1].header.next_offset if count else offset
        return OffsetRange(offset, max(offset, min(self.opened.high_watermark, stop)))


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
        self._near: dict[TopicPartition, OpenPartition] = {}  # replicas that the last attempt read in place of leaders
        # The brokers of near replicas that have a file that cannot be read: another replica is read instead.
        self._broken: dict[TopicPartition, set[int]] = {}
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

    def _row(self, near: OpenPartition) -> object:
        rows = error_or(self._view.replicas, near.row.broker_id, RECENT_SECONDS)
        return rows if isinstance(rows, LakelogException) else rows.get(near.registration.topic_id_partition)

    def attempt(self, time_is_over: bool) -> bool:
        """Reads all partitions, and stores the answers if the fetch need not wait for more. Returns whether it did."""
        reader = PartitionReader(self._view, self._rack)
        self._near = self._find_near(reader)
        found = {partition: self._open(partition, offset, reader) for partition, offset in self._offsets.items()}
        readable = [f if isinstance(f, LakelogException) else sum(f.sizes) for f in found.values()]
        outcome = fetch_outcome(readable, self._min_bytes, self._max_bytes, time_is_over)
        if not outcome.is_done:
            return False
        self.answers = self._read(found)
        broken = {partition: near for partition, near in self._near.items() if self.answers[partition].error}
        for partition, near in broken.items():
            self._broken.setdefault(partition, set()).add(near.row.broker_id)
        return not broken or self.attempt(time_is_over)

    def _find_near(self, reader: PartitionReader) -> dict[TopicPartition, OpenPartition]:
        """The replicas that are read instead of leaders: of those in the reader's rack that have the offset the most
        caught-up ones."""
        chosen = dict[TopicPartition, OpenPartition]()
        if self._rack is None:
            return chosen
        for partition, offset in self._offsets.items():
            watch = self._watches[partition.topic]
            seen = error_or(watch.leadership, partition.partition) if isinstance(watch, TopicWatch) else None
            for near in reader.in_rack(seen.registration) if isinstance(seen, Leadership) else ():
                is_broken = near.row.broker_id in self._broken.get(partition, ())
                if not is_broken and near.log.log_start_offset <= offset <= near.high_watermark:
                    chosen[partition] = near
                    break
        return chosen

    def _open(self, partition: TopicPartition, offset: int, reader: PartitionReader) -> _Readable | LakelogException:
        watch = self._watches[partition.topic]
        if isinstance(watch, LakelogException):
            return watch
        if partition in self._near:
            return _Readable.of(self._near[partition], offset)
        try:
            opened = reader.open_for_fetch(watch.leadership(partition.partition))
            if offset > opened.log.log_end_offset:  # a later leader may have it
                self._view.cluster.check_current()
            check_fetch_offset(offset, opened.log, f"{partition.topic}-{partition.partition}")
        except LakelogException as error:
            return error
        return _Readable.of(opened, offset)

    def _read(
        self, found: Mapping[TopicPartition, _Readable | LakelogException]
    ) -> dict[TopicPartition, FetchedRecords]:
        wanted, room, is_first = dict[TopicPartition, OffsetRange](), self._max_bytes, True
        for partition, readable in found.items():
            if not isinstance(readable, LakelogException):
                count = batches_within(readable.sizes, room, is_first)
                room, is_first = room - sum(readable.sizes[:count]), is_first and not count
                wanted[partition] = readable.range_of(self._offsets[partition], count)
        # In the files of the version that was checked.
        rows = read_rows({p: each.opened.rows(wanted[p]) for p, each in found.items() if isinstance(each, _Readable)})
        return {
            partition: _answer(readable.opened, rows[partition], wanted[partition].stop)
            if isinstance(readable, _Readable)
            else FetchedRecords(error=readable)
            for partition, readable in found.items()
        }


def _answer(opened: OpenPartition, rows: pa.Table | LakelogException, next_offset: int) -> FetchedRecords:
    if isinstance(rows, LakelogException):
        return FetchedRecords(error=rows)
    topic_id = opened.registration.topic_id
    return FetchedRecords(rows, opened.high_watermark, opened.log.log_start_offset, None, topic_id, next_offset)


def read_rows(wanted: Mapping[Key, Sequence[RowRange]]) -> dict[Key, pa.Table | LakelogException]:
    """For each key, the records of its ranges in the order of offsets, with the columns of `schemas.LOG`, or the error
    of a file that has any of them. Each file is read once."""
    by_file: dict[tuple[str, str], list[tuple[Key, RowRange]]] = {}
    for key, ranges in wanted.items():
        for each in ranges:
            by_file.setdefault((each.file.root.uri, each.file.name), []).append((key, each))
    parts: dict[Key, list[tuple[int, pa.Table]]] = {key: [] for key in wanted}
    errors: dict[Key, LakelogException] = {}
    for key, start, read in chain.from_iterable(in_threads(_read_file, list(by_file.values()), _FILES_AT_A_TIME)):
        if isinstance(read, LakelogException):
            errors.setdefault(key, read)
        else:
            parts[key].append((start, read))
    return {key: errors.get(key) or _joined(found) for key, found in parts.items()}


def _read_file(wanted: Sequence[tuple[Key, RowRange]]) -> list[tuple[Key, int, pa.Table | LakelogException]]:
    """The records of ranges of one file, each with its key and its first offset, or the file's error."""
    ranges = [each for _, each in wanted]
    tables = error_or(read_row_ranges, ranges[0].file, ranges)
    found = [tables] * len(ranges) if isinstance(tables, LakelogException) else tables
    return [(key, each.start, table) for (key, each), table in zip(wanted, found, strict=True)]


def _joined(parts: list[tuple[int, pa.Table]]) -> pa.Table:
    ordered = [table for _, table in sorted(parts, key=lambda part: part[0])]
    return pa.concat_tables(ordered) if ordered else LOG.arrow.empty_table()
