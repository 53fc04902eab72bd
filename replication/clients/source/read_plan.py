"""Plans a read: the segments that have the records within bounds, split into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from lakelog.replication.clients.partition_reader import OpenPartition
from lakelog.replication.clients.source.partition_view import PartitionView, Registered
from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.delayed_operation import has_records
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition, TopicPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.partition_rows import RowRange, row_ranges
from lakelog.replication.storage.log.segment import Segment

_TASK_BYTES = 32 * 1024 * 1024  # keys and values


@dataclass(frozen=True)
class SegmentFile:
    """A segment: its log, its name, the bytes of its file and its rows."""

    root: StorageRoot
    name: str
    size: int
    rows: int


@dataclass(frozen=True)
class RecordRange:
    """Consecutive records of a partition, and the segment that has them from row `first_row` on.

    `start` is the first offset, `stop` the one after the last. `bytes`: about the size of keys and values. `end`: where
    the last batch of the range ends, and the chain there; a log with that chain has these very records.
    """

    file: SegmentFile
    first_row: int
    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    bytes: int
    end: LogEnd

    @property
    def records(self) -> int:
        """The number of records."""
        return self.stop - self.start

    @property
    def rows(self) -> RowRange:
        """The rows in the segment."""
        return RowRange(TopicIdPartition(self.topic_id, self.partition), self.start, self.stop, self.first_row)

    def part(self, start: int, stop: int) -> RecordRange:
        """A part of the range, by offsets."""
        size = self.bytes * (stop - start) // max(1, self.records)
        return replace(self, first_row=self.first_row + start - self.start, start=start, stop=stop, bytes=size)


def ranges_of(readable: OpenPartition, start: int, stop: int, since: int | None = None) -> Iterator[RecordRange]:
    """The ranges of a partition from offset `start` to before `stop`. Segments without a record of it from `since` on
    (microseconds since 1970) are left out."""
    newest: dict[str, int] = {}
    for batch in readable.log.batches_between(start, stop):
        newest[batch.segment] = max(batch.header.max_timestamp, newest.get(batch.segment, batch.header.max_timestamp))
    for name, timestamp in newest.items():
        if since is None or timestamp >= since:
            yield from _in_segment(readable, readable.state.segments[name], start, stop)


def _in_segment(readable: OpenPartition, segment: Segment, start: int, stop: int) -> Iterator[RecordRange]:
    rows = sum(header.records for header in segment.headers)
    file = SegmentFile(readable.root, segment.name, segment.file.size, rows)
    bytes_a_record = sum(header.bytes for header in segment.headers) / max(1, rows)
    who = readable.registration
    for found in row_ranges(segment.headers, who.topic_id_partition, start, stop):
        size = round(bytes_a_record * (found.stop - found.start))
        last = readable.log.batches_between(found.start, found.stop)[-1].header
        end = LogEnd(last.next_offset, last.chain)
        yield RecordRange(file, found.row, who.topic, who.topic_id, who.partition, found.start, found.stop, size, end)


def tasks_of(
    ranges: Iterable[RecordRange], min_tasks: int | None = None, max_records: int | None = None
) -> list[list[RecordRange]]:
    """The ranges of each task. A task has whole segments of about 32 MB together. With `min_tasks`, or `max_records` of
    a task, tasks are of equal size, and several may read the same segment."""
    ordered = sorted(ranges, key=lambda r: (*_segment_of(r), r.first_row))
    tasks = _of_segments(ordered)
    if min_tasks is None and max_records is None:
        return tasks
    records = sum(each.records for each in ordered)
    wanted = max(len(tasks), min_tasks or 1, -(-records // max_records) if max_records else 1)
    return list(_of_equal_size(ordered, records, min(wanted, records)))


def _segment_of(each: RecordRange) -> tuple[str, str]:
    return each.file.root.uri, each.file.name


def _of_segments(ordered: Sequence[RecordRange]) -> list[list[RecordRange]]:
    tasks: list[list[RecordRange]] = []
    size = _TASK_BYTES
    for _, found in groupby(ordered, key=_segment_of):
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


Bounds = Mapping[TopicPartition, tuple[int, int]]


def plan_ranges(
    view: PartitionView, registered: Registered, bounds: Bounds, since: int | None = None
) -> list[RecordRange]:
    """The ranges of all records within the bounds, without segments that have no record from `since` on (microseconds
    since 1970). Raises as `PartitionReader.holding`, and CorruptRecordException if records are missing in a log."""
    wanted = {partition: each for partition, each in bounds.items() if each[0] < each[1]}
    found: list[RecordRange] = []
    for partition, readable in view.holding(registered, wanted).items():
        found += _ranges(readable, *wanted[partition], since)
    return found


def _ranges(readable: OpenPartition, start: int, stop: int, since: int | None = None) -> list[RecordRange]:
    ranges = list(ranges_of(readable, start, stop))
    if sum(each.records for each in ranges) != stop - start:
        name = readable.registration.name
        raise CorruptRecordException(f"{name}: the log lacks records between offset {start} and {stop}")
    return ranges if since is None else list(ranges_of(readable, start, stop, since))


def plan_tasks(options: SourceOptions, ranges: Sequence[RecordRange]) -> list[list[RecordRange]]:
    """The tasks of a read, as its options say."""
    return tasks_of(ranges, options.min_partitions, options.max_records_per_partition)


@dataclass(frozen=True)
class FindAgain:
    """Finds records whose segment has gone, in the cluster of these options."""

    options: SourceOptions
    open_view: Callable[[SourceOptions], PartitionView]

    @cached_property
    def _view(self) -> PartitionView:
        return self.open_view(self.options)

    def __call__(self, lost: RecordRange) -> list[RecordRange]:
        """The ranges that have these records now. Raises as `plan_ranges`, and CorruptRecordException if the records at
        these offsets are others now: an unclean election has replaced them, or the topic was made again. KIP-320."""
        return self._view.retried(lambda: self._poll(lost))

    def _poll(self, lost: RecordRange) -> list[RecordRange]:
        partition = TopicPartition(lost.topic, lost.partition)
        registered = {partition: self._view.view.partitions(lost.topic)[lost.partition]}
        if registered[partition].topic_id != lost.topic_id:
            raise CorruptRecordException(f"{partition}: the topic was deleted and made again while it was read")
        bounds = {partition: (lost.start, lost.stop)}
        (readable,) = self._view.holding(registered, bounds).values()
        if not has_records(readable.log, *lost.end):
            raise CorruptRecordException(
                f"{partition}: an unclean election has replaced records {lost.start} to {lost.stop - 1} while they "
                "were read"
            )
        return _ranges(readable, lost.start, lost.stop)
