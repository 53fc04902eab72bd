"""Finds a partition's offset for a timestamp, and the ends of its leader epochs.

Kafka: `Partition.fetchOffsetForTimestamp`, KIP-734.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.clients.partition_reader import OpenPartition, PartitionReader
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import NotLeaderOrFollowerException
from lakelog.replication.protocol.delayed_operation import check_offset_available
from lakelog.replication.protocol.leader_epoch import end_offset_for
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.storage.log.segment import read_records

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NAMES = {"latest": LATEST, "earliest": EARLIEST, "max-timestamp": MAX_TIMESTAMP}

_COLUMNS = ["topic_id", "partition", "offset", "timestamp"]
_MICROSECONDS = 1000  # in a millisecond: records have microseconds, Kafka's tools have milliseconds


class TimestampAndOffset(NamedTuple):
    """An offset, and the timestamp in ms of its record; None for the start or the end of a log."""

    offset: int
    timestamp: int | None = None


class EpochEndOffset(NamedTuple):
    """The largest epoch at or below the requested one, and the offset after its last record; -1 if unknown."""

    leader_epoch: int
    end_offset: int


def offset_for(led: OpenPartition, time: int) -> TimestampAndOffset | None:
    """The offset of the first committed record at `time` or later, None without one.

    `led`: the partition at its leader. `time`: in ms since 1970, or `LATEST`, `EARLIEST` or `MAX_TIMESTAMP`. It reads
    only those batches whose headers allow such a record.

    Raises OffsetNotAvailableException if the answer depends on how much is committed, and a new leader does not know
    that yet. KIP-207.
    """
    if time == EARLIEST:
        return TimestampAndOffset(led.log.log_start_offset)
    found = _first_record_since(led, time * _MICROSECONDS) if time >= 0 else None
    if found is not None:
        return found
    name = led.registration.name
    check_offset_available(None, led.high_watermark, led.log.epoch_start, name)
    if time == LATEST:
        return TimestampAndOffset(led.high_watermark)
    return _latest_record(led) if time == MAX_TIMESTAMP else None


def _first_record_since(led: OpenPartition, microseconds: int) -> TimestampAndOffset | None:
    for batch in committed_batches(led):
        if batch.header.max_timestamp < microseconds:
            continue
        late = [record for record in records_of(led, batch) if record[1] >= microseconds]
        if late:  # there may be none: the newest record of a batch may be deleted, or not be committed
            return _answer(*late[0])
    return None


def _latest_record(led: OpenPartition) -> TimestampAndOffset | None:
    """The record with the largest timestamp, the first if there are several. Reads the batches by their largest
    timestamps, until no other batch can have a later record."""
    found: tuple[int, int] | None = None
    for batch in sorted(committed_batches(led), key=lambda b: (-b.header.max_timestamp, b.base_offset)):
        if found and batch.header.max_timestamp <= found[1]:
            break
        records = [*([found] if found else []), *records_of(led, batch)]
        found = max(records, key=lambda record: (record[1], -record[0]), default=None)
    return _answer(*found) if found else None


def _answer(offset: int, microseconds: int) -> TimestampAndOffset:
    return TimestampAndOffset(offset, microseconds // _MICROSECONDS)


def committed_batches(led: OpenPartition) -> list[PlacedBatch]:
    """The batches that have committed records, in order. The log cleaner may have left none of a batch."""
    batches = led.log.batches_between(led.log.log_start_offset, led.high_watermark)
    return [batch for batch in batches if batch.header.retained.records]


def records_of(led: OpenPartition, batch: PlacedBatch) -> list[tuple[int, int]]:
    """Offsets and timestamps in µs of the batch's committed records, in order."""
    start = max(batch.base_offset, led.log.log_start_offset)
    stop = min(batch.header.next_offset, led.high_watermark)
    rows = read_records(led.root, batch.segment, _COLUMNS)
    is_of_batch = pc.and_(
        pc.and_(pc.equal(rows["topic_id"], batch.header.topic_id), pc.equal(rows["partition"], batch.header.partition)),
        pc.and_(pc.greater_equal(rows["offset"], start), pc.less(rows["offset"], stop)),
    )
    chosen = rows.filter(is_of_batch).sort_by("offset")
    timestamps = pc.cast(pc.cast(chosen["timestamp"], pa.timestamp("us", tz="UTC")), pa.int64())
    return list(zip(chosen["offset"].to_pylist(), timestamps.to_pylist(), strict=True))


def epoch_ends(
    view: TopicView, topic: str, partition: int, epochs: Iterable[int], broker_id: int | None
) -> dict[int, EpochEndOffset]:
    """The end offset of each of these leader epochs in the leader's log, see `Consumer.epoch_end`. It tells others what
    to truncate, so no leader answers that may be deposed."""
    seen = TopicWatch(view, topic, [partition]).leadership(partition)
    view.cluster.check_current()
    registration = seen.registration
    if broker_id not in (None, registration.leader):
        raise NotLeaderOrFollowerException(
            f"{topic}-{partition}: broker {broker_id} does not lead, broker {registration.leader} does"
        )
    log = PartitionReader(view).open_for_fetch(seen).log
    return {e: EpochEndOffset(*end_offset_for(log.lineage, log.log_end_offset, e)) for e in epochs}
