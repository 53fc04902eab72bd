"""The batch read of `format("lakelog")`: its filters, its tasks, and what a task does on an executor, where it needs
neither JVM nor Delta. Spark: `KafkaRelation`, `KafkaBatch`."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from lakelog.replication.clients.plain_errors import plain_errors, plain_iteration
from lakelog.replication.clients.source.partition_view import PartitionView, Registered, partition_view
from lakelog.replication.clients.source.read_plan import Bounds, FindAgain, PlannedRows, plan_rows, plan_tasks
from lakelog.replication.clients.source.source_columns import arrow_schema
from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.errors import CorruptRecordException, OffsetOutOfRangeException
from lakelog.replication.protocol.record_batch import OffsetRange
from lakelog.replication.storage.log.partition_rows import read_row_ranges

logger = logging.getLogger(__name__)

_BATCH_BYTES = 4 * 1024 * 1024
_MOVES = 5
_LARGEST = 2**63 - 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_Values: TypeAlias = frozenset[Any]


@dataclass(frozen=True)
class PushedFilters:
    """What the filters let pass: topics and partitions (None: all), offsets from `first` to `last`, and records whose
    timestamp is `since` or later (microseconds since 1970)."""

    topics: _Values | None = None
    numbers: _Values | None = None
    first: int = 0
    last: int = _LARGEST
    since: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> PushedFilters:
        """The filters that all must hold; those on other columns, or of other kinds, are left to Spark."""
        topics = numbers = since = None
        first, last = 0, _LARGEST
        for each in filters:
            column, values = _column_of(each), _values_of(each)
            low, high = _range_of(each, values) if column in (("offset",), ("timestamp",)) else (None, None)
            if column == ("topic",) and values is not None:
                topics = values if topics is None else topics & values
            elif column == ("partition",) and values is not None:
                numbers = values if numbers is None else numbers & values
            elif column == ("offset",):
                first = first if low is None else max(first, low)
                last = last if high is None else min(last, high)
            elif column == ("timestamp",) and low is not None:
                since = low if since is None else max(since, low)
        return cls(topics, numbers, first, last, since)

    def within(self, bounds: Bounds) -> Bounds:
        """The bounds of what passes."""
        return {
            partition: OffsetRange(max(start, self.first), min(stop, self.last + 1))
            for partition, (start, stop) in bounds.items()
            if (self.topics is None or partition.topic in self.topics)
            and (self.numbers is None or partition.partition in self.numbers)
        }


NO_FILTERS = PushedFilters()


def _column_of(given: Filter) -> tuple[str, ...]:
    return tuple(getattr(given, "attribute", ()))


def _values_of(given: Filter) -> _Values | None:
    """The values that an equality names."""
    if isinstance(given, EqualTo):
        return frozenset([given.value])
    return frozenset(given.value) if isinstance(given, In) else None


def _range_of(given: Filter, values: _Values | None) -> tuple[int | None, int | None]:
    """The least and the largest number that pass, None where the filter sets no such bound."""
    if values is not None:
        found = [_number(value) for value in values if value is not None]
        return (min(found), max(found)) if found else (None, None)
    if isinstance(given, GreaterThan | GreaterThanOrEqual):
        return _number(given.value) + isinstance(given, GreaterThan), None
    if isinstance(given, LessThan | LessThanOrEqual):
        return None, _number(given.value) - isinstance(given, LessThan)
    return None, None


def _number(value: dt.datetime | int) -> int:
    """An offset, or a timestamp as microseconds since 1970."""
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // dt.timedelta(microseconds=1)
    return value


@dataclass
class TopicTask(InputPartition):
    """What one task reads. The columns were checked before."""

    planned: list[PlannedRows]


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
        return [TopicTask(task) for task in plan_tasks(self._options, self._planned())]

    def _planned(self) -> list[PlannedRows]:
        view = partition_view(self._options)
        return view.retried(lambda: self._plan(view))

    def _plan(self, view: PartitionView) -> list[PlannedRows]:
        registered = view.registrations(must_exist=True)
        bounds = self._filters.within(self._bounds(view, registered))
        return plan_rows(view, registered, bounds, self._filters.since)

    def _bounds(self, view: PartitionView, registered: Registered) -> Bounds:
        led = view.led(registered)
        starts = view.offsets(self._options.batch_starting, led)
        stops = view.offsets(self._options.ending, led)
        for partition, start in starts.items():
            if start > stops[partition]:
                raise OffsetOutOfRangeException(
                    f"{partition}: the read starts at offset {start}, after its end {stops[partition]}"
                )
        return {partition: OffsetRange(start, stops[partition]) for partition, start in starts.items()}

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


def records_of(task: InputPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of one task. For a read without tasks Spark makes one of its own, which has no records."""
    if not isinstance(task, TopicTask):
        return iter(())
    return plain_iteration(read_task(task.planned, arrow_schema(schema), FindAgain(options, partition_view)))


def read_task(
    planned: Sequence[PlannedRows],
    schema: pa.Schema,
    find_again: Callable[[PlannedRows], Sequence[PlannedRows]],
    moves: int = _MOVES,
) -> Iterator[pa.RecordBatch]:
    """The planned records, each exactly once, as batches of `schema`.

    Compaction, retention or a truncation may have deleted a segment since the task was planned. Then `find_again` plans
    its records anew, at most `moves` times. Raises CorruptRecordException, naming the file, if
    records cannot be read.
    """
    for file, found in groupby(planned, key=lambda each: each.rows.file):
        wanted = list(found)
        try:
            tables = read_row_ranges(file, [each.rows for each in wanted], schema.names, use_threads=False)
            _check_count(wanted, tables)
        except CorruptRecordException as error:
            if not moves:
                raise
            logger.info("%s; its records are planned anew", error)
            again = [new for each in wanted for new in find_again(each)]
            yield from read_task(again, schema, find_again, moves - 1)
            continue
        for table in tables:
            yield from _batches(table, schema)


def _check_count(wanted: Sequence[PlannedRows], tables: Sequence[pa.Table]) -> None:
    for each, table in zip(wanted, tables, strict=True):
        if not each.rows.is_cleaned and table.num_rows != each.rows.offsets:
            file = each.rows.file
            raise CorruptRecordException(
                f"{file.root.path(file.name)}: has {table.num_rows} of the records {each.rows.start} to "
                f"{each.rows.stop - 1} of {each.topic_partition}"
            )


def _batches(found: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of some MB: Spark holds one at a time in memory that is not of the heap."""
    size = max(1, _BATCH_BYTES * found.num_rows // max(1, found.nbytes))
    table = found.cast(schema)
    for start in range(0, table.num_rows, size):
        yield table.slice(start, size).combine_chunks().to_batches()[0]
