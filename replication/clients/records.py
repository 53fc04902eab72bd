"""Converts records of Python and tables of users: checks the columns, fills in defaults and chooses partitions."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

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

# A record's columns by name, or its value alone.
PythonRecord: TypeAlias = Mapping[str, Any] | str | bytes | bytearray | memoryview

_TEXT_OR_BYTES = (str, bytes, bytearray, memoryview)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TYPES = {**ALLOWED, "partition": pa.int64()}


def python_records(records: Sequence[PythonRecord] | PythonRecord, topic: str) -> pa.Table:
    """The table of a list of records, or of one record. A str or bytes is a value alone. Text is encoded as UTF-8.

    Headers are pairs of a name and a value. A datetime without a time zone is in UTC. A missing column is null. Raises
    InvalidRecordException with the number of the record and the column.
    """
    if isinstance(records, tuple) and (hasattr(records, "_fields") or hasattr(records, "__fields__")):
        raise InvalidRecordException(f"records for topic {topic} are one row, {_kind(records)}: give a list of dicts")
    given = [records] if isinstance(records, (Mapping, *_TEXT_OR_BYTES)) else records
    return table_of_rows(
        [checked_row(record, f"records for topic {topic}: record {number}") for number, record in enumerate(given)]
    )


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The table of checked records."""
    names = {"value", *(name for row in rows for name in row)}
    return pa.table({name: pa.array([row.get(name) for row in rows], _TYPES[name]) for name in _TYPES if name in names})


def checked_row(record: PythonRecord, where: str) -> dict[str, Any]:
    """The columns of one record, with text as bytes. Raises InvalidRecordException, which begins with `where`."""
    if isinstance(record, _TEXT_OR_BYTES):
        record = {"value": record}
    if not isinstance(record, Mapping):
        raise InvalidRecordException(f"{where} is {_kind(record)}, it must be a dict, str or bytes")
    unknown = [name for name in record if name not in ALLOWED]
    if unknown:
        raise InvalidRecordException(f"{where}: column {unknown[0]} is unknown; known are {', '.join(ALLOWED)}")
    if "value" not in record:
        raise InvalidRecordException(f"{where} has no value (None is a tombstone, and allowed)")
    return {
        name: None if value is None else _COLUMNS[name](value, f"{where}: {name}") for name, value in record.items()
    }


def single_row(
    topic: str, value: object, key: object, partition: int | None, timestamp: object, headers: object
) -> dict[str, Any]:
    """The columns of one record. `timestamp`: a datetime, or milliseconds since 1970; None is now. `headers`: pairs, or
    a dict. Raises InvalidRecordException."""
    where = f"record for topic {topic}"
    if timestamp is None:
        timestamp = dt.datetime.now(dt.UTC)
    elif isinstance(timestamp, int) and not isinstance(timestamp, bool):
        try:
            timestamp = _EPOCH + dt.timedelta(milliseconds=timestamp)
        except OverflowError:
            raise InvalidRecordException(
                f"{where}: timestamp {timestamp} is no time of the years 1 to 9999, in milliseconds since 1970"
            ) from None
    headers = list(headers.items()) if isinstance(headers, Mapping) else headers
    given = {"value": value, "key": key, "partition": partition, "timestamp": timestamp, "headers": headers}
    return checked_row(given, where)


def row_bytes(row: Mapping[str, Any]) -> int:
    """The bytes of a single record's key, value and headers."""
    headers = sum(len(name.encode()) + len(content or b"") for name, content in row["headers"] or ())
    return len(row["key"] or b"") + len(row["value"] or b"") + headers


def _bytes(value: object, where: str) -> bytes:
    if not isinstance(value, _TEXT_OR_BYTES):
        raise InvalidRecordException(f"{where} is {_kind(value)}, it must be str, bytes or None")
    try:
        return value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError as error:
        raise InvalidRecordException(f"{where} is no text that UTF-8 can hold: {error.reason}") from error


def _timestamp(value: object, where: str) -> dt.datetime:
    """The time in UTC. One at the edge of the years 1 to 9999 may lie outside of them there, and would fail all records
    of its batch."""
    if not isinstance(value, dt.datetime) or value != value:  # NaT of pandas is a datetime, and equals nothing
        raise InvalidRecordException(f"{where} is {_kind(value)}, it must be a datetime or None")
    try:
        zoned = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value
        return zoned if zoned.tzinfo is dt.UTC else zoned.astimezone(dt.UTC)
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidRecordException(f"{where} is {value!r:.80}, which is no time of the years 1 to 9999") from error


def _partition(value: object, where: str) -> int:
    """The number as an int. `partitions_of` checks later whether the topic has it."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InvalidRecordException(f"{where} is {_kind(value)}, it must be an int or None")
    if not -(2**63) <= int(value) < 2**63:
        raise InvalidRecordException(f"{where} is {value}, which is no number of a partition")
    return int(value)


def _headers(value: object, where: str) -> list[tuple[str, bytes | None]]:
    if not isinstance(value, list | tuple):
        raise InvalidRecordException(f"{where} is {_kind(value)}, it must be a list of pairs of a name and a value")
    return [_header(pair, f"{where}: header {number}") for number, pair in enumerate(value)]


def _header(pair: object, where: str) -> tuple[str, bytes | None]:
    if isinstance(pair, Mapping) and set(pair) == {"key", "value"}:
        pair = (pair["key"], pair["value"])  # as in the column of a table
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
        raise InvalidRecordException(f"{where} is {pair!r:.80}, it must be a pair of a name and a value")
    _bytes(pair[0], where)  # checks that the name can be UTF-8
    return pair[0], None if pair[1] is None else _bytes(pair[1], where)


_COLUMNS: dict[str, Callable[[object, str], object]] = {
    "key": _bytes,
    "value": _bytes,
    "partition": _partition,
    "timestamp": _timestamp,
    "headers": _headers,
}


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


def check_columns(schema: pa.Schema, topic: str) -> None:
    """Raises InvalidRecordException for a missing `value`, an unknown column, a wrong type, or a name that two columns
    have; it lists all of them.

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
    counts = Counter(schema.names)
    problems += [f"column {name} is there {count} times, it must be one" for name, count in counts.items() if count > 1]
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
        is_list = pa.types.is_list(given) or pa.types.is_large_list(given)
        is_of_structs = is_list and pa.types.is_struct(given.value_type)
        return is_of_structs and {field.name for field in given.value_type} == {"key", "value"}
    return pa.types.is_integer(given)


_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
)


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
        bounds = [bound.as_py() for bound in pc.min_max(cast.cast(pa.int64())).values()]
        outside = [b for b in bounds if b is not None and not _YEAR_1 <= b < _YEAR_10000]
        if outside:  # Spark and Python cannot read it
            raise InvalidRecordException(
                f"records for topic {topic}: column timestamp: {outside[0]} microseconds since 1970 are outside of the "
                "years 1 to 9999, and could not be read"
            )
    return cast


def partitions_of(table: pa.Table, records: pa.Table, topic: str, partitions: int, sticky: int) -> pa.ChunkedArray:
    """The partition of each record: from the column `partition`, otherwise by Kafka's murmur2 of the key.

    All records of a send without a key go to the partition `sticky` (KIP-480). Raises InvalidPartitionsException for a
    partition that the topic does not have.
    """
    given = None
    if _PARTITION in table.column_names:
        try:
            given = table[_PARTITION].cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InvalidPartitionsException(
                f"records for topic {topic}: column partition: {error}; the topic has 0 to {partitions - 1}"
            ) from error
        for bound in (each.as_py() for each in pc.min_max(given).values()):
            if bound is not None and not 0 <= bound < partitions:
                raise InvalidPartitionsException(
                    f"records for topic {topic}: partition {bound} is out of range, the topic has 0 to {partitions - 1}"
                )
        if not given.null_count:
            return given.cast(pa.int32())
    by_key = pa.chunked_array([partition_of_keys(records["key"], partitions, sticky)], pa.int32())
    return by_key if given is None else pc.if_else(pc.is_valid(given), given.cast(pa.int32()), by_key)


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
