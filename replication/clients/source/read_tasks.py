"""Splits a read into tasks: each reads rows of a few segments. Spark: `KafkaOffsetRangeCalculator`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from lakelog.replication.clients.source.readable_partition import ReadablePartition
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_state import LogState

_TASK_BYTES = 32 * 1024 * 1024  # keys and values


@dataclass(frozen=True)
class RecordRange:
    """Consecutive records of a partition, and the segment that has them from row `first_row` on.

    `start` is the first offset, `stop` the one after the last. `bytes`: about the size of keys and values.
    """

    root: StorageRoot
    segment: str
    first_row: int
    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    bytes: int

    @property
    def records(self) -> int:
        """The number of records."""
        return self.stop - self.start

    @property
    def name(self) -> str:
        """The partition for people."""
        return f"{self.topic}-{self.partition}"

    def part(self, start: int, stop: int) -> RecordRange:
        """A part of the range, by offsets."""
        size = self.bytes * (stop - start) // max(1, self.records)
        return replace(self, first_row=self.first_row + start - self.start, start=start, stop=stop, bytes=size)


class SegmentRows:
    """The first row of each batch in the segments of a log."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._rows: dict[str, dict[tuple[TopicIdPartition, int], int]] = {}

    def first_row(self, batch: PlacedBatch) -> int:
        """The batch's first row: rows are in the order of the headers."""
        if batch.segment not in self._rows:
            self._rows[batch.segment] = dict(self._in_segment(batch.segment))
        return self._rows[batch.segment][batch.header.topic_id_partition, batch.base_offset]

    def _in_segment(self, name: str) -> Iterator[tuple[tuple[TopicIdPartition, int], int]]:
        row = 0
        for header in self._state.segments[name].headers:
            yield (header.topic_id_partition, header.base_offset), row
            row += header.records


def ranges_of(
    readable: ReadablePartition, rows: SegmentRows, start: int, stop: int, since: int | None = None
) -> Iterator[RecordRange]:
    """The ranges of a partition from offset `start` to before `stop`. Batches without a record from `since` on
    (microseconds since 1970) are left out."""
    for batch in readable.log.batches:
        header = batch.header
        if header.next_offset <= start or header.base_offset >= stop:
            continue
        if since is not None and header.max_timestamp < since:
            continue
        whole = RecordRange(
            readable.root, batch.segment, rows.first_row(batch), header.topic, header.topic_id, header.partition,
            header.base_offset, header.next_offset, header.bytes,
        )  # fmt: skip
        yield whole.part(max(start, header.base_offset), min(stop, header.next_offset))


def tasks_of(
    ranges: Iterable[RecordRange], min_tasks: int | None = None, max_records: int | None = None
) -> list[list[RecordRange]]:
    """The ranges of each task. A task has whole segments of about 32 MB together. With `min_tasks`, or `max_records` of
    a task, tasks are of equal size, and several may read the same segment."""
    ordered = sorted(ranges, key=lambda r: (r.root.uri, r.segment, r.first_row))
    tasks = _of_segments(ordered)
    if min_tasks is None and max_records is None:
        return [_merged(task) for task in tasks]
    records = sum(each.records for each in ordered)
    wanted = max(len(tasks), min_tasks or 1, -(-records // max_records) if max_records else 1)
    return [_merged(task) for task in _of_equal_size(ordered, records, min(wanted, records))]


def _of_segments(ordered: Sequence[RecordRange]) -> list[list[RecordRange]]:
    tasks: list[list[RecordRange]] = []
    size = _TASK_BYTES
    for _, found in groupby(ordered, key=lambda r: (r.root.uri, r.segment)):
        segment = list(found)
        if size >= _TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1] += segment
        size += sum(each.bytes for each in segment)
    return tasks


def _of_equal_size(ordered: Sequence[RecordRange], records: int, count: int) -> Iterator[list[RecordRange]]:
    """Splits ranges where a task is full. Sizes of tasks differ by one record at most."""
    task: list[RecordRange] = []
    taken, made = 0, 0
    for each in ordered:
        start = each.start
        while start < each.stop:
            stop = min(each.stop, start + records * (made + 1) // count - taken)
            task.append(each.part(start, stop))
            taken, start = taken + stop - start, stop
            if taken == records * (made + 1) // count:
                yield task
                task, made = [], made + 1


def _merged(ranges: Sequence[RecordRange]) -> list[RecordRange]:
    """The same with batches that follow one another in their segment as one range."""
    merged: list[RecordRange] = []
    for each in ranges:
        last = merged[-1] if merged else None
        if last and _follows(last, each):
            merged[-1] = replace(last, stop=each.stop, bytes=last.bytes + each.bytes)
        else:
            merged.append(each)
    return merged


def _follows(last: RecordRange, each: RecordRange) -> bool:
    same = (last.root, last.segment, last.topic_id, last.partition) == (
        each.root, each.segment, each.topic_id, each.partition,
    )  # fmt: skip
    return same and last.stop == each.start and last.first_row + last.records == each.first_row
