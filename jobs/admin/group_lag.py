"""How far a group is behind in a partition: in records, in bytes and in time."""

from typing import NamedTuple

from lakelog.replication.clients.led_partition import LedPartition
from lakelog.replication.clients.offset_lookup import LATEST, committed_batches, offset_for, records_of
from lakelog.replication.protocol.partition_log import PlacedBatch

_MICROSECONDS = 1000  # in a millisecond


class Lag(NamedTuple):
    """The high watermark, and what lies between a committed offset and it; None without a committed offset.

    `records` counts offsets, also of records that were deleted, as Kafka does. `bytes` is of keys and values. `ms` is
    the time between the next record to read and the newest one, by their own timestamps.
    """

    end_offset: int
    records: int | None = None
    ms: int | None = None
    bytes: int | None = None


def lag_of(led: LedPartition, committed: int | None) -> Lag:
    """The lag of a group that has committed this offset. Of the files it reads the timestamps of one batch at most.

    Raises OffsetNotAvailableException as long as a new leader does not know how much is committed.
    """
    found = offset_for(led, LATEST)
    assert found is not None, "every partition has a high watermark"
    end = found.offset
    if committed is None:
        return Lag(end)
    unread = [batch for batch in committed_batches(led) if batch.header.next_offset > committed]
    size = sum(_share(batch, committed, end) for batch in unread)
    return Lag(end, end - committed, _milliseconds(led, unread, committed), size)


def _share(batch: PlacedBatch, start: int, stop: int) -> int:
    """The bytes of a batch that is read in part are shared out by records."""
    records = min(stop, batch.header.next_offset) - max(start, batch.base_offset)
    return batch.header.bytes * records // batch.header.records


def _milliseconds(led: LedPartition, unread: list[PlacedBatch], committed: int) -> int:
    if not unread:
        return 0
    next_record = next((time for offset, time in records_of(led, unread[0]) if offset >= committed), None)
    newest = max(batch.header.max_timestamp for batch in unread)
    return max(0, newest - next_record) // _MICROSECONDS if next_record is not None else 0
