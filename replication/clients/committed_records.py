"""The committed records of a whole topic as Arrow, fetch by fetch, without Spark. [FE-01]"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.clients.committed_range import Offsets, check_partitions, committed_range
from lakelog.replication.clients.consumer_fetch import FetchedRecords
from lakelog.replication.clients.partition_reader import PartitionReader
from lakelog.replication.clients.purgatory import until_available
from lakelog.replication.clients.topic_view import TopicView, pause
from lakelog.replication.errors import (
    LakelogException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
)
from lakelog.replication.protocol.record_batch import OffsetRange

# The records from these offsets on, by partition, as `Consumer.fetch` returns them.
Fetch: TypeAlias = Callable[[Mapping[int, int]], Mapping[int, FetchedRecords]]

_PARTITIONS_AT_A_TIME = 500  # a fetch plans all that it is asked for, and returns the records of few


def committed_ranges(
    view: TopicView, topic: str, starting: Offsets, ending: Offsets
) -> tuple[str, dict[int, OffsetRange]]:
    """The id of the topic, and the committed offsets of each partition that a read takes.

    Waits up to `request.timeout.ms` for leaders. Raises UnknownTopicOrPartitionException, InvalidPartitionsException,
    OffsetOutOfRangeException for offsets that are not committed or an end before its start, and what
    `PartitionReader.leader` raises.
    """
    config = view.cluster.config
    deadline = time.monotonic() + config.request_timeout_ms / 1000
    return until_available(lambda: _ranges(view, topic, starting, ending), deadline, config.lakelog_poll_interval_ms)


def _ranges(view: TopicView, topic: str, starting: Offsets, ending: Offsets) -> tuple[str, dict[int, OffsetRange]]:
    registrations = view.partitions(topic)
    check_partitions(topic, registrations, starting, ending)
    reader, found = PartitionReader(view), dict[int, OffsetRange]()
    for number, registration in sorted(registrations.items()):
        found[number] = committed_range(reader.leader(registration), starting, ending)
        start, stop = found[number]
        if start > stop:
            raise OffsetOutOfRangeException(
                f"{registration.name}: starting is offset {start}, after ending, which is {stop}"
            )
    return next(iter(registrations.values())).topic_id, found


def committed_batches(
    fetch: Fetch, ranges: Mapping[int, OffsetRange], timeout_ms: float, poll_interval_ms: int
) -> Iterator[pa.RecordBatch]:
    """The records of a topic within these offsets, those of a partition in their order. It has one fetch in memory.

    Retriable errors are retried until no record has come for `timeout_ms`. Raises the error of a partition,
    UnknownTopicIdException if the topic is made again meanwhile, and OffsetNotAvailableException if a new leader has
    not published for that long that the records are committed.
    """
    left = {number: each for number, each in ranges.items() if each.start < each.stop}
    deadline = time.monotonic() + timeout_ms / 1000
    while left:
        wanted = dict(islice(left.items(), _PARTITIONS_AT_A_TIME))
        fetched = fetch({number: each.start for number, each in wanted.items()})
        errors = [each.error for each in fetched.values() if each.error is not None]
        following = {number: _read_on(fetched[number], each.start) for number, each in wanted.items()}
        moved = [number for number, each in wanted.items() if following[number] > each.start]
        _check(errors, bool(moved) or time.monotonic() < deadline)
        for number in moved:
            stop = left.pop(number).stop
            yield from records_before(fetched[number].records, stop).to_batches()
            if following[number] < stop:  # behind the others, whose records the next fetch returns first
                left[number] = OffsetRange(following[number], stop)
        if moved:
            deadline = time.monotonic() + timeout_ms / 1000
        else:
            pause(poll_interval_ms, deadline)


def _check(errors: Sequence[LakelogException], may_retry: bool) -> None:
    for error in errors:
        if not may_retry or not error.retriable:
            raise error
    if not may_retry:
        raise OffsetNotAvailableException("a leader does not know yet that the records up to the end are committed")


def _read_on(fetched: FetchedRecords, offset: int) -> int:
    """The offset at which the next fetch goes on: the same again after an error."""
    return offset if fetched.error is not None else fetched.next_offset


def records_before(records: pa.Table, stop: int) -> pa.Table:
    """The records before an offset. They are in the order of their offsets."""
    if not records.num_rows or records["offset"][-1].as_py() < stop:
        return records
    return records.slice(0, pc.sum(pc.less(records["offset"], stop)).as_py())
