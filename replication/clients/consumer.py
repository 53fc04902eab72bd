"""Reads committed records from the logs of their leaders, and stores the offsets of a consumer group.

A consumer needs no Spark and returns Arrow tables. Kafka: `KafkaConsumer`, `ReplicaManager.fetchMessages`,
`GroupMetadataManager`. [FE-01, FE-02, DO-02, AP-04]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from lakelog.replication.clients.delayed_operation import DelayedOperation, Purgatory
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    InvalidGroupIdException,
    LakelogException,
    NotLeaderOrFollowerException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.delayed_operation import (
    batches_within,
    check_committed_offset,
    check_fetch_offset,
    check_log_leads,
    fetch_outcome,
)
from lakelog.replication.protocol.fencing import check_leader_row
from lakelog.replication.protocol.leader_epoch import end_offset_for
from lakelog.replication.protocol.partition_leader import Leadership
from lakelog.replication.protocol.partition_log import PartitionLog, PlacedBatch
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.segment import read_records, rows_of
from lakelog.replication.storage.tables.group_table import CommittedOffset
from lakelog.schemas import LOG


@dataclass(frozen=True)
class FetchedRecords:
    """The result of a fetch from one partition: records (columns of `lakelog.schemas.LOG`), or an error.

    With an error, high watermark and log start are -1. Kafka: `FetchPartitionData`.
    """

    records: pa.Table = field(default_factory=LOG.arrow.empty_table)
    high_watermark: int = -1
    log_start_offset: int = -1
    error: LakelogException | None = None


class EpochEndOffset(NamedTuple):
    """The largest epoch at or below the requested one, and the offset after its last record; -1 if unknown."""

    leader_epoch: int
    end_offset: int


class Consumer:
    """Kafka's `KafkaConsumer`: fetches from offsets that the caller gives. With a `group` it also stores offsets.

    For one thread at a time. Raises InconsistentClusterIdException if there is no cluster at `cluster_uri`.
    """

    def __init__(self, cluster_uri: str, group: str | None = None, config: Config | None = None) -> None:
        self._view = TopicView(Cluster.open(cluster_uri, config))
        self._group = group

    def fetch(
        self, topic: str, offsets: Mapping[int, int], min_bytes: int = 1, max_wait_ms: int = 500,
        max_bytes: int = 52_428_800,
    ) -> dict[int, FetchedRecords]:  # fmt: skip
        """Fetches committed records: see `fetch("orders", {0: 42})[0].records` for partition 0 from offset 42.

        Returns at once if there are `min_bytes` or a partition has an error, otherwise after `max_wait_ms` with the
        records that there are. Returns at most `max_bytes` of keys and values, in the order of `offsets`; only the
        first batch may be larger. It waits at an offset above the HW, because a new leader's HW may be behind. Errors
        are in the results; repeat the fetch if `error.retriable`.
        """
        deadline = time.monotonic() + max_wait_ms / 1000
        try:
            fetch = _DelayedFetch(self._view, topic, offsets, min_bytes, max_bytes)
            purgatory = Purgatory[int]()
            purgatory.try_complete_else_watch(DelayedOperation(offsets, deadline, fetch.attempt))
            purgatory.wait(fetch.watch.moved, self._view.cluster.config.lakelog_poll_interval_ms)
        except LakelogException as error:
            return {partition: FetchedRecords(error=error) for partition in offsets}
        return fetch.answers

    def epoch_end(
        self, topic: str, partition: int, epochs: Iterable[int], broker_id: int | None = None
    ) -> dict[int, EpochEndOffset]:
        """The end offset of each leader epoch in the leader's log. Pass `broker_id` if that broker must lead.

        Kafka: `ReplicaManager.lastOffsetForLeaderEpoch`. KIP-101, KIP-279. [EP-03]

        Raises UnknownTopicOrPartitionException, LeaderNotAvailableException, and NotLeaderOrFollowerException if the
        broker does not lead: it may still truncate its log.
        """
        seen = _existing(self._view.leaderships(topic, [partition]), topic, partition)
        registration = seen.registration
        if broker_id not in (None, registration.leader):
            raise NotLeaderOrFollowerException(
                f"{topic}-{partition}: broker {broker_id} does not lead, broker {registration.leader} does"
            )
        log = _led_log(seen, lambda leader: self._view.log(leader).refresh())
        return {e: EpochEndOffset(*end_offset_for(log.lineage, log.log_end_offset, e)) for e in epochs}

    def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Stores the group's offsets (topic: partition: next offset), all of them or none.

        It is one compare-and-set on a table of the cluster, so there is no `offsets.commit.required.acks`.

        Kafka: `GroupMetadataManager.storeOffsets`. [AP-04] Raises InvalidGroupIdException without a group,
        UnknownTopicOrPartitionException, OffsetOutOfRangeException for an offset below 0 or above 2^63 - 1, and, if the
        commit failed or its outcome is unknown after `request.timeout.ms`, TimeoutException or KafkaStorageException.
        """
        group, rows = self._known_group(), []
        for topic, by_partition in offsets.items():
            registrations = self._view.partitions(topic)
            for partition, offset in by_partition.items():
                name = f"{topic}-{partition}"
                if partition not in registrations:
                    raise UnknownTopicOrPartitionException(f"{name}: no such partition, {topic} has {[*registrations]}")
                check_committed_offset(offset, name)
                rows.append(CommittedOffset(group, topic, registrations[partition].topic_id, partition, offset))
        deadline = time.monotonic() + self._view.cluster.config.request_timeout_ms / 1000
        self._view.cluster.groups.commit(rows, deadline)

    def committed(self, topic: str) -> dict[int, int]:
        """The offsets that the group committed last, for the partitions that have one.

        Raises InvalidGroupIdException without a group, UnknownTopicOrPartitionException, KafkaStorageException.
        """
        group = self._known_group()
        registrations = self._view.partitions(topic)
        kept = self._view.cluster.groups.committed(group)
        found = {number: kept.get(r.topic_id_partition) for number, r in registrations.items()}
        return {number: offset for number, offset in found.items() if offset is not None}

    def _known_group(self) -> str:
        if not self._group:
            raise InvalidGroupIdException(
                f"group is {self._group!r}: a consumer stores offsets only under the name of a group"
            )
        return self._group


def _existing(seen: Mapping[int, Leadership], topic: str, partition: int) -> Leadership:
    if partition not in seen:
        raise UnknownTopicOrPartitionException(f"{topic}-{partition}: topic {topic} has no such partition")
    return seen[partition]


def _led_log(seen: Leadership, refreshed: Callable[[int], LogState]) -> PartitionLog:
    """The partition's log at its leader, read after the leader's row."""
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
    """The batches between a fetch offset and the HW, in a log whose leader was checked."""

    registration: PartitionRegistration
    batches: list[PlacedBatch]
    high_watermark: int
    log_start_offset: int

    @property
    def sizes(self) -> list[int]:
        """The bytes of each batch, at least 1: otherwise a fetch would never return a batch of empty records."""
        return [max(1, batch.header.bytes) for batch in self.batches]


class _DelayedFetch:
    """One fetch. It ends when `answers` has an entry for each partition."""

    def __init__(self, view: TopicView, topic: str, offsets: Mapping[int, int], min_bytes: int, max_bytes: int) -> None:
        self.answers: dict[int, FetchedRecords] = {}
        self.watch = TopicWatch(view, topic, offsets)
        self._view = view
        self._topic = topic
        self._offsets = offsets
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes

    def attempt(self, time_is_over: bool) -> bool:
        refreshed = cache(lambda leader: self._view.log(leader).refresh())
        found = {partition: self._look(partition, offset, refreshed) for partition, offset in self._offsets.items()}
        readable = [f if isinstance(f, LakelogException) else sum(f.sizes) for f in found.values()]
        outcome = fetch_outcome(readable, self._min_bytes, self._max_bytes, time_is_over)
        if outcome.is_done:
            self.answers = self._read(found)
        return outcome.is_done

    def _look(self, partition: int, offset: int, refreshed: Callable[[int], LogState]) -> _Readable | LakelogException:
        """Reads the HW first and then the log, never the other way round."""
        try:
            seen = _existing(self.watch.seen, self._topic, partition)
            log = _led_log(seen, refreshed)
            check_fetch_offset(offset, log, f"{self._topic}-{partition}")
        except LakelogException as error:
            return error
        high_watermark = seen.row.high_watermark if seen.row else 0
        readable = log.batches if offset < high_watermark else []
        batches = [b for b in readable if b.header.next_offset > offset and b.base_offset < high_watermark]
        return _Readable(seen.registration, batches, high_watermark, log.log_start_offset)

    def _read(self, found: Mapping[int, _Readable | LakelogException]) -> dict[int, FetchedRecords]:
        answers, room, is_first = {}, self._max_bytes, True
        read = cache(lambda leader, name: read_records(self._view.log(leader).root, name))
        for partition, looked in found.items():
            if isinstance(looked, LakelogException):
                answers[partition] = FetchedRecords(error=looked)
                continue
            count = batches_within(looked.sizes, room, is_first)
            room, is_first = room - sum(looked.sizes[:count]), is_first and not count
            answers[partition] = _records(looked, looked.batches[:count], self._offsets[partition], read)
        return answers


def _records(
    looked: _Readable, batches: list[PlacedBatch], offset: int, read: Callable[[int, str], pa.Table]
) -> FetchedRecords:
    """The rows of the batches from `offset` to the HW, from the files of the version that was checked."""
    stop = min(looked.high_watermark, batches[-1].header.next_offset if batches else offset)
    try:
        tables = [
            rows_of(read(looked.registration.leader, name), looked.registration.topic_id_partition, offset, stop)
            for name in dict.fromkeys(batch.segment for batch in batches)
        ]
    except LakelogException as error:
        return FetchedRecords(error=error)
    records = pa.concat_tables([LOG.arrow.empty_table(), *tables]).sort_by("offset")
    return FetchedRecords(records, looked.high_watermark, looked.log_start_offset)
