"""Plans a read: the segments that have the records within bounds, split into tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lakelog.replication.clients.readable_partition import ReadablePartition
from lakelog.replication.clients.source.partition_view import PartitionView, Registered
from lakelog.replication.clients.source.read_tasks import RecordRange, ranges_of, tasks_of
from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.delayed_operation import has_records
from lakelog.replication.protocol.record_batch import TopicPartition

Bounds = Mapping[TopicPartition, tuple[int, int]]


def plan_ranges(
    view: PartitionView, registered: Registered, bounds: Bounds, since: int | None = None
) -> list[RecordRange]:
    """The ranges of all records within the bounds, without segments that have no record from `since` on (microseconds
    since 1970). Raises as `ReplicaSelector.holding`, and CorruptRecordException if records are missing in a log."""
    wanted = {partition: each for partition, each in bounds.items() if each[0] < each[1]}
    found: list[RecordRange] = []
    for partition, readable in view.holding(registered, wanted).items():
        found += _ranges(readable, *wanted[partition], since)
    return found


def _ranges(readable: ReadablePartition, start: int, stop: int, since: int | None = None) -> list[RecordRange]:
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
        return self._view.retried(lambda: self._look(lost))

    def _look(self, lost: RecordRange) -> list[RecordRange]:
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
