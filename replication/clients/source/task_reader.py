"""Reads the records of a task, on an executor. It needs no JVM and no Delta."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from lakelog.replication.clients.source.read_tasks import RecordRange
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.log.segment import read_records

_BATCH_BYTES = 4 * 1024 * 1024
_CHECKED = ("topic_id", "partition", "offset")
_MOVES = 5
_log = logging.getLogger(__name__)

# Finds the segments that have the records of a range now.
FindAgain = Callable[[RecordRange], Sequence[RecordRange]]


def read_task(ranges: Sequence[RecordRange], schema: pa.Schema, find_again: FindAgain) -> Iterator[pa.RecordBatch]:
    """The records of the ranges, each exactly once, as batches of `schema`.

    A segment may have gone since the task was planned, as compaction, retention and truncation remove segments. Then
    `find_again` tells where the records are. Raises CorruptRecordException, naming the file, if records are not where
    their headers say.
    """
    todo = [(each, 0) for each in reversed(ranges)]
    name, rows = "", pa.table({})
    while todo:
        each, moves = todo.pop()
        path = each.root.path(each.segment)
        try:
            if path != name:
                name, rows = path, _rows(each, schema)
            found = _found(rows, each, path)
        except CorruptRecordException as error:
            if moves == _MOVES:
                raise
            _log.info("%s; looking for the records from offset %s on again", error, each.start)
            todo += [(again, moves + 1) for again in reversed(find_again(each))]
            continue
        yield from _batches(found, schema)


def _rows(each: RecordRange, schema: pa.Schema) -> pa.Table:
    columns = list(dict.fromkeys((*schema.names, *_CHECKED)))
    return read_records(each.root, each.segment, columns, use_threads=False)


def _found(rows: pa.Table, each: RecordRange, path: str) -> pa.Table:
    found = rows.slice(each.first_row, each.records)
    ends = found.take([0, found.num_rows - 1]).select(_CHECKED).to_pylist() if found.num_rows else []
    wanted = [dict(zip(_CHECKED, (each.topic_id, each.partition, o), strict=True)) for o in (each.start, each.stop - 1)]
    if ends != wanted or found.num_rows != each.records:
        raise CorruptRecordException(
            f"{path}: the records of {each.name} from offset {each.start} to {each.stop - 1} are not in its rows "
            f"{each.first_row} to {each.first_row + each.records - 1}"
        )
    return found


def _batches(found: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of some MB: Spark holds one at a time in memory that is not of the heap."""
    size = max(1, _BATCH_BYTES * found.num_rows // max(1, found.nbytes))
    table = found.select(schema.names).cast(schema)
    for start in range(0, table.num_rows, size):
        yield table.slice(start, size).combine_chunks().to_batches()[0]
