"""Reads the records of a task, on an executor. It needs no JVM and no Delta."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from lakelog.replication.clients.source.read_tasks import RecordRange
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.log.partition_rows import read_row_ranges

_BATCH_BYTES = 4 * 1024 * 1024
_MOVES = 5
_log = logging.getLogger(__name__)

# Finds the segments that have the records of a range now.
FindAgain = Callable[[RecordRange], Sequence[RecordRange]]


def read_task(
    ranges: Sequence[RecordRange], schema: pa.Schema, find_again: FindAgain, moves: int = _MOVES
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The records of the ranges, each exactly once, as batches of `schema`.

    A segment may have gone since the task was planned, as compaction, retention and truncation remove segments. Then
    `find_again` tells where the records are, at most `moves` times. Raises CorruptRecordException, naming the file, if
    records cannot be read.
    """
    for file, found in groupby(ranges, key=lambda each: each.file):
        wanted = list(found)
        rows = [each.rows for each in wanted]
        try:
            tables = read_row_ranges(file.root, file.name, file.size, file.rows, rows, schema.names, use_threads=False)
            _check_count(wanted, tables)
        except CorruptRecordException as error:
            if not moves:
                raise
            _log.info("%s; looking for its records again", error)
            again = [new for each in wanted for new in find_again(each)]
            yield from read_task(again, schema, find_again, moves - 1)
            continue
        for table in tables:
            yield from _batches(table, schema)


def _check_count(wanted: Sequence[RecordRange], tables: Sequence[pa.Table]) -> None:
    for each, table in zip(wanted, tables, strict=True):
        if table.num_rows != each.records:
            raise CorruptRecordException(
                f"{each.file.root.path(each.file.name)}: has {table.num_rows} of the records {each.start} to "
                f"{each.stop - 1} of {each.topic}-{each.partition}"
            )


def _batches(found: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of some MB: Spark holds one at a time in memory that is not of the heap."""
    size = max(1, _BATCH_BYTES * found.num_rows // max(1, found.nbytes))
    table = found.cast(schema)
    for start in range(0, table.num_rows, size):
        yield table.slice(start, size).combine_chunks().to_batches()[0]
