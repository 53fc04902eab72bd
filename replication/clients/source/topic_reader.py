"""The batch read of `format("lakelog")`. Spark: `KafkaRelation`, `KafkaBatch`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lakelog.replication.clients.plain_errors import plain_errors, plain_iteration
from lakelog.replication.clients.source.columns import arrow_schema
from lakelog.replication.clients.source.partition_view import PartitionView, Registered, partition_view
from lakelog.replication.clients.source.pushed_filters import NO_FILTERS, PushedFilters
from lakelog.replication.clients.source.read_plan import Bounds, FindAgain, plan_ranges, plan_tasks
from lakelog.replication.clients.source.read_tasks import RecordRange
from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.clients.source.task_reader import read_task
from lakelog.replication.errors import OffsetOutOfRangeException


@dataclass
class TopicTask(InputPartition):
    """What one task reads. The columns were checked before."""

    ranges: list[RecordRange]


def records_of(task: InputPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of one task. For a read without tasks Spark makes one of its own, which has no records."""
    if not isinstance(task, TopicTask):
        return iter(())
    return plain_iteration(read_task(task.ranges, arrow_schema(schema), FindAgain(options, partition_view)))


class TopicReader(DataSourceReader):
    """Reads the committed records that there are when Spark plans the query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = NO_FILTERS
        arrow_schema(schema)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks of the read."""
        return [TopicTask(task) for task in plan_tasks(self._options, self._ranges())]

    def _ranges(self) -> list[RecordRange]:
        view = partition_view(self._options)
        return view.retried(lambda: self._look(view))

    def _look(self, view: PartitionView) -> list[RecordRange]:
        registered = view.registrations(must_exist=True)
        bounds = self._filters.within(self._bounds(view, registered))
        return plan_ranges(view, registered, bounds, self._filters.since)

    def _bounds(self, view: PartitionView, registered: Registered) -> Bounds:
        led = view.led(registered)
        starts = view.offsets(self._options.batch_starting, led)
        stops = view.offsets(self._options.ending, led)
        for partition, start in starts.items():
            if start > stops[partition]:
                raise OffsetOutOfRangeException(
                    f"{partition}: the read starts at offset {start}, after its end {stops[partition]}"
                )
        return {partition: (start, stops[partition]) for partition, start in starts.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return records_of(partition, self._options, self._schema)


class FilteredTopicReader(TopicReader):
    """A reader that takes filters. Spark refuses it where `spark.sql.python.filterPushdown.enabled` is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Leaves out partitions, offsets and batches that no filter lets pass. Spark applies all filters again, since
        batches are read as a whole."""
        self._filters = PushedFilters.of(filters)
        return filters
