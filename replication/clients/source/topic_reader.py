"""The batch read of `format("lakelog")`: its tasks, and what a task does on an executor, where it needs
neither JVM nor Delta. Spark: `KafkaRelation`, `KafkaBatch`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakelog.replication.clients.source.partition_view import PartitionView, Registered, partition_view
from lakelog.replication.clients.source.read_plan import Bounds, FindAgain, PlannedRows, plan_rows, plan_tasks
from lakelog.replication.clients.source.source_columns import arrow_schema
from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.clients.source.typed_values import TypedValues, avro_decoders
from lakelog.replication.clients.spark_worker import plain_errors, plain_iteration
from lakelog.replication.errors import CorruptRecordException, OffsetOutOfRangeException
from lakelog.replication.protocol.record_batch import OffsetRange
from lakelog.replication.protocol.schema_history import AvroValues
from lakelog.replication.storage.log.partition_rows import RowRange, row_pieces

logger = logging.getLogger(__name__)

_BATCH_BYTES = 4 * 1024 * 1024
_MOVES = 5


@dataclass
class TopicTask(InputPartition):
    """The records that one task reads. Its columns are checked already. `avro`: the schemas of the topics that have
    values in Avro; empty for a read without typed values."""

    planned: list[PlannedRows]
    avro: Mapping[str, AvroValues] = field(default_factory=dict)


class TopicReader(DataSourceReader):
    """Reads the records that are committed when Spark first plans a query of the frame.

    It takes no filters (`pushFilters`). Spark 4.2 keeps the tasks of the first query for all later queries of the same
    frame or view, and within one query the tasks of the last filters for all reads. So a filter would leave out records
    that another query or read needs.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        arrow_schema(schema, options.typed_values)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The tasks of the read."""
        return topic_tasks(self._options, self._schema, partition_view(self._options), self._planned())

    def _planned(self) -> list[PlannedRows]:
        view = partition_view(self._options)
        return view.retried(lambda: self._plan(view))

    def _plan(self, view: PartitionView) -> list[PlannedRows]:
        registered = view.registrations(must_exist=True)
        return plan_rows(view, registered, self._bounds(view, registered))

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


def topic_tasks(
    options: SourceOptions, schema: StructType, view: PartitionView, planned: Sequence[PlannedRows]
) -> list[InputPartition]:
    """The tasks that read the planned records. Raises InvalidConfigurationException for columns that the Avro schema of
    a topic does not have.

    The Avro schemas are read after the records were planned. So the schema of each planned record is among them, if it
    was set before the record was written.
    """
    tasks = plan_tasks(options, planned)
    if not options.typed_values:
        return [TopicTask(task) for task in tasks]
    avro = view.avro_values({each.topic for each in planned})
    avro_decoders(schema, avro)  # refuses wrong columns before a task begins
    return [TopicTask(task, _of_topics(avro, {each.topic for each in task})) for task in tasks]


def _of_topics(avro: Mapping[str, AvroValues], topics: Set[str]) -> dict[str, AvroValues]:
    return {topic: values for topic, values in avro.items() if topic in topics}


def records_of(task: InputPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of one task. For a read without tasks Spark makes one of its own, which has no records."""
    if not isinstance(task, TopicTask):
        return iter(())
    wanted, find_again = arrow_schema(schema, options.typed_values), FindAgain(options, partition_view)
    if not options.typed_values:
        return plain_iteration(read_task(task.planned, wanted, find_again))
    typed = TypedValues(schema, wanted, options.fails_fast, task.avro)
    return plain_iteration(map(typed, read_task(task.planned, typed.stored, find_again)))


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
        left = dict(enumerate(found))
        try:
            for number, part, records in row_pieces(file, [each.rows for each in left.values()], schema.names, False):
                _check_count(left[number], part, records)
                yield from _batches(records, schema)
                if part.stop < left[number].rows.stop:
                    left[number] = left[number].part(part.stop, left[number].rows.stop)
                else:
                    del left[number]
        except CorruptRecordException as error:
            if not moves:
                raise
            logger.info("%s; its records are planned anew", error)
            again = [new for each in left.values() for new in find_again(each)]
            yield from read_task(again, schema, find_again, moves - 1)


def _check_count(wanted: PlannedRows, part: RowRange, records: pa.Table) -> None:
    if not part.is_cleaned and records.num_rows != part.offsets:
        raise CorruptRecordException(
            f"{part.file.root.path(part.file.name)}: has {records.num_rows} of the records {part.start} to "
            f"{part.stop - 1} of {wanted.topic_partition}"
        )


def _batches(found: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of some MB, none with rows of several row groups: Spark holds one at a time in memory that is not of the
    heap."""
    size = max(1, _BATCH_BYTES * found.num_rows // max(1, found.nbytes))
    return iter(found.cast(schema).to_batches(size))
