"""Converts a user's table to records: checks the columns, fills in defaults and chooses partitions."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.clients.partitioner import partition_of_keys
from lakelog.replication.errors import InvalidPartitionsException, InvalidRecordException
from lakelog.replication.storage.log.new_batches import DATA_COLUMNS
from lakelog.schemas import LOG

_PARTITION = "partition"
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000  # in microseconds since 1970
# The columns that a user's table may have, and their types.
ALLOWED = {name: LOG.arrow.field(name).type for name in DATA_COLUMNS} | {_PARTITION: pa.int32()}


def check_columns(schema: pa.Schema, topic: str) -> None:
    """Raises InvalidRecordException for a missing `value`, an unknown column or a wrong type; it lists all of them.

    Strings are allowed for `key` and `value`, as UTF-8, as in Spark's Kafka sink.
    """
    problems = (
        [] if "value" in schema.names else ["there is no column value (a null value is a tombstone, and allowed)"]
    )
    for column in schema:
        if column.name not in ALLOWED:
            problems.append(f"column {column.name} is unknown; known are {', '.join(ALLOWED)}")
        elif not _fits(column.name, column.type):
            problems.append(f"column {column.name} is {column.type}, it must be {ALLOWED[column.name]}")
    if problems:
        raise InvalidRecordException(f"records for topic {topic}: " + "; ".join(problems))


def _fits(name: str, given: pa.DataType) -> bool:
    if pa.types.is_null(given):
        return True
    if name in ("key", "value"):
        return any(is_type(given) for is_type in _BYTES)
    if name == "timestamp":
        return pa.types.is_timestamp(given)
    if name == "headers":
        return _is_headers(given)
    return pa.types.is_integer(given)


_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
)


def _is_headers(given: pa.DataType) -> bool:
    if not (pa.types.is_list(given) or pa.types.is_large_list(given)) or not pa.types.is_struct(given.value_type):
        return False
    return {field.name for field in given.value_type} == {"key", "value"}


def to_records(table: pa.Table, now: int | None = None, topic: str = "") -> pa.Table:
    """The record columns in the log's types. Missing keys and headers are null; a missing timestamp is `now`.

    `now` is in microseconds since the epoch, by default the current time. The log keeps microseconds, so nanoseconds
    are rounded down. A timestamp without a time zone is in UTC. Raises InvalidRecordException for values that the log's
    types cannot hold.
    """
    now = pa.scalar(now or time.time_ns() // 1000, pa.timestamp("us", tz="UTC"))
    columns = {}
    for name in DATA_COLUMNS:
        wanted = ALLOWED[name]
        given = table[name] if name in table.column_names else pa.nulls(table.num_rows, wanted)
        column = _cast(given, name, topic)
        columns[name] = pc.fill_null(column, now) if name == "timestamp" else column
    return pa.table(columns)


def _cast(column: pa.ChunkedArray, name: str, topic: str) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = pc.floor_temporal(column, unit="microsecond")
    try:
        cast = column.cast(ALLOWED[name])
    except pa.ArrowInvalid as error:
        raise InvalidRecordException(f"records for topic {topic}: column {name}: {error}") from error
    if name == "headers" and pc.any(pc.is_null(pc.struct_field(pc.list_flatten(cast), "key"))).as_py():
        raise InvalidRecordException(f"records for topic {topic}: column headers: a header without a key (null)")
    if name == "timestamp":
        bounds = pc.min_max(cast.cast(pa.int64()))
        outside = [value for value in (bounds["min"].as_py(), bounds["max"].as_py()) if not _is_readable(value)]
        if outside:
            raise InvalidRecordException(
                f"records for topic {topic}: column timestamp: {outside[0]} microseconds since 1970 are outside of the "
                "years 1 to 9999, and could not be read"
            )
    return cast


def _is_readable(timestamp: int | None) -> bool:
    """Whether it lies in the years 1 to 9999. Spark and Python can read no others."""
    return timestamp is None or _YEAR_1 <= timestamp < _YEAR_10000


def partitions_of(table: pa.Table, records: pa.Table, topic: str, partitions: int, sticky: int) -> pa.ChunkedArray:
    """The partition of each record: from the column `partition`, otherwise by Kafka's murmur2 of the key.

    All records of a send without a key go to the partition `sticky` (KIP-480). Raises InvalidPartitionsException for a
    partition that the topic does not have.
    """
    by_key = pa.chunked_array([partition_of_keys(records["key"], partitions, sticky)], pa.int32())
    if _PARTITION not in table.column_names:
        return by_key
    try:
        told = table[_PARTITION].cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidPartitionsException(
            f"records for topic {topic}: column partition: {error}; the topic has 0 to {partitions - 1}"
        ) from error
    bounds = pc.min_max(told)
    for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
        if bound is not None and not 0 <= bound < partitions:
            raise InvalidPartitionsException(
                f"records for topic {topic}: partition {bound} is out of range, the topic has 0 to {partitions - 1}"
            )
    return pc.if_else(pc.is_valid(told), told.cast(pa.int32()), by_key)


def check_partitions(topic: str, numbers: Iterable[int], partitions: int) -> None:
    """Raises InvalidPartitionsException for a partition that the topic does not have."""
    outside = [number for number in numbers if not 0 <= number < partitions]
    if outside:
        raise InvalidPartitionsException(
            f"records for topic {topic}: partition {outside[0]} is out of range, it has 0 to {partitions - 1}"
        )


def split(records: pa.Table, partitions: pa.ChunkedArray) -> Mapping[int, pa.Table]:
    """The records of each partition, in their original order."""
    placed = pa.table({"partition": partitions, "place": pa.arange(0, len(partitions))})
    order = pc.sort_indices(placed, [("partition", "ascending"), ("place", "ascending")])
    ordered, numbers = records.take(order), partitions.take(order)
    counts = sorted((row["values"], row["counts"]) for row in pc.value_counts(numbers).to_pylist())
    parts, start = {}, 0
    for number, count in counts:
        parts[number] = ordered.slice(start, count)
        start += count
    return parts


def random_partition(partitions: int) -> int:
    """A random partition for the records of one send that have no key."""
    return random.randrange(partitions)
