"""Plans a read: the rows of segments that have the records within bounds, split into tasks."""

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
from lakelog.replication.protocol.record_batch import LogEnd, OffsetRange, TopicPartition
from lakelog.replication.storage.log.partition_rows import RowRange

_TASK_BYTES = 64 * 1024 * 1024  # keys and values

Bounds = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True)
class PlannedRows:
    """Rows of a segment that a task reads, and how to find their records again once the segment is deleted.

    `topic`: its name. `bytes`: about the size of keys and values. `end`: where the last batch of the rows ends, and the
    chain there; a log with that chain has these very records.
    """

    rows: RowRange
    topic: str
    bytes: int
    end: LogEnd

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition by the name of its topic."""
        return TopicPartition(self.topic, self.rows.topic_id_partition.partition)

    def part(self, start: int, stop: int) -> PlannedRows:
        """A part of the rows, by offsets."""
        size = self.bytes * (stop - start) // max(1, self.rows.offsets)
        return replace(self, rows=self.rows.part(start, stop), bytes=size)


def plan_rows(view: PartitionView, registered: Registered, bounds: Bounds) -> list[PlannedRows]:
    """The rows of all records within the bounds. Raises as `PartitionReader.holding`, and CorruptRecordException if
    records are missing in a log."""
    wanted = {partition: each for partition, each in bounds.items() if each.start < each.stop}
    opened = view.holding(registered, wanted)
    return [rows for partition, each in opened.items() for rows in _planned(each, wanted[partition])]


def _planned(readable: OpenPartition, offsets: OffsetRange) -> Iterator[PlannedRows]:
    found = readable.rows(offsets)
    if sum(each.offsets for each in found) != offsets.stop - offsets.start:
        name = readable.registration.name
        raise CorruptRecordException(f"{name}: the log lacks records between offset {offsets.start} and {offsets.stop}")
    for rows in found:
        headers = readable.state.segments[rows.file.name].headers
        size = round(sum(header.retained.bytes for header in headers) / max(1, rows.file.rows) * rows.rows)
        last = readable.log.batches_between(rows.start, rows.stop)[-1].header
        yield PlannedRows(rows, readable.registration.topic, size, LogEnd(last.next_offset, last.chain))


def plan_tasks(options: SourceOptions, planned: Sequence[PlannedRows]) -> list[list[PlannedRows]]:
    """The tasks of a read, by its options."""
    return tasks_of(planned, options.min_partitions, options.max_records_per_partition)


def tasks_of(
    planned: Iterable[PlannedRows], min_tasks: int | None = None, max_records: int | None = None
) -> list[list[PlannedRows]]:
    """The rows of each task. A task has whole segments of about 64 MB together. With `min_tasks`, or `max_records` of a
    task, tasks are of equal size, and several may read the same segment."""
    ordered = sorted(planned, key=lambda each: (*_segment_of(each), each.rows.row))
    tasks = _of_segments(ordered)
    if min_tasks is None and max_records is None:
        return tasks
    records = sum(each.rows.offsets for each in ordered)
    wanted = max(len(tasks), min_tasks or 1, -(-records // max_records) if max_records else 1)
    return list(_of_equal_size(ordered, records, min(wanted, records)))


def _segment_of(each: PlannedRows) -> tuple[str, str]:
    return each.rows.file.root.uri, each.rows.file.name


def _of_segments(ordered: Sequence[PlannedRows]) -> list[list[PlannedRows]]:
    tasks: list[list[PlannedRows]] = []
    size = _TASK_BYTES
    for _, found in groupby(ordered, key=_segment_of):
        segment = list(found)
        if size >= _TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1] += segment
        size += sum(each.bytes for each in segment)
    return tasks


def _of_equal_size(ordered: Sequence[PlannedRows], records: int, count: int) -> Iterator[list[PlannedRows]]:
    """Splits rows where a task is full. Sizes of tasks differ by one record at most."""
    task: list[PlannedRows] = []
    taken, made = 0, 0
    for each in ordered:
        start, end = each.rows.start, each.rows.stop
        while start < end:
            stop = min(end, start + records * (made + 1) // count - taken)
            task.append(each.part(start, stop))
            taken, start = taken + stop - start, stop
            if taken == records * (made + 1) // count:
                yield task
                task, made = [], made + 1


@dataclass(frozen=True)
class FindAgain:
    """Finds records whose segment was deleted, in the cluster of these options."""

    options: SourceOptions
    open_view: Callable[[SourceOptions], PartitionView]

    @cached_property
    def _view(self) -> PartitionView:
        return self.open_view(self.options)

    def __call__(self, lost: PlannedRows) -> list[PlannedRows]:
        """The rows that have these records now. Raises as `plan_rows`, and CorruptRecordException if the records at
        these offsets are others now: an unclean election has replaced them, or the topic was made again. KIP-320."""
        return self._view.retried(lambda: self._find(lost))

    def _find(self, lost: PlannedRows) -> list[PlannedRows]:
        partition, offsets = lost.topic_partition, OffsetRange(lost.rows.start, lost.rows.stop)
        registered = self._view.view.partitions(partition.topic).get(partition.partition)
        if registered is None or registered.topic_id_partition != lost.rows.topic_id_partition:
            raise CorruptRecordException(f"{partition}: the topic was deleted and made again while it was read")
        (readable,) = self._view.holding({partition: registered}, {partition: offsets}).values()
        if not has_records(readable.log, *lost.end):
            raise CorruptRecordException(
                f"{partition}: an unclean election has replaced records {offsets.start} to {offsets.stop - 1} while "
                "they were read"
            )
        return list(_planned(readable, offsets))
