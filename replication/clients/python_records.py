"""Converts Python records, that is dicts, str and bytes, to an Arrow table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import pyarrow as pa

from lakelog.replication.clients.records import ALLOWED
from lakelog.replication.errors import InvalidRecordException

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
