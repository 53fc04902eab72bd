"""Formats records for the console. Kafka: `DefaultMessageFormatter`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa

from lakelog.jobs.console.key_values import Text, checked
from lakelog.replication.properties import Boolean, ValueType

PROPERTIES: dict[str, ValueType] = {
    **dict.fromkeys(
        ("print.timestamp", "print.partition", "print.offset", "print.headers", "print.key", "print.value"), Boolean()
    ),
    **dict.fromkeys(("key.separator", "line.separator", "headers.separator", "null.literal"), Text()),
}
_DEFAULTS = {
    "print.value": True,
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


class RecordFormatter:
    """Formats each record as a line, with the properties and the defaults of Kafka's. Raises
    InvalidConfigurationException for an unknown property or a wrong value."""

    def __init__(self, pairs: Collection[tuple[str, str]] = ()) -> None:
        given: Mapping[str, Any] = {**_DEFAULTS, **checked(pairs, PROPERTIES, "--formatter-property")}
        self._separator, self._end = given["key.separator"].encode(), given["line.separator"].encode()
        self._headers_separator, self._null = given["headers.separator"].encode(), given["null.literal"].encode()
        fields: dict[str, tuple[str, Callable[[Any], bytes]]] = {
            "print.timestamp": ("timestamp", _timestamp),
            "print.partition": ("partition", lambda number: b"Partition:%d" % number),
            "print.offset": ("offset", lambda number: b"Offset:%d" % number),
            "print.headers": ("headers", self._headers),
            "print.key": ("key", self._bytes),
            "print.value": ("value", self._bytes),
        }
        self._fields = [fields[name] for name in fields if given.get(name)]

    def lines(self, records: pa.Table) -> bytes:
        """The lines of records, with the columns of `schemas.LOG`."""
        columns = [map(field, records[name].to_pylist()) for name, field in self._fields]
        if not columns:
            return b""
        return b"".join(self._separator.join(fields) + self._end for fields in zip(*columns, strict=True))

    def _bytes(self, value: bytes | None) -> bytes:
        return self._null if value is None else value

    def _name(self, key: str | None) -> bytes:
        """The key of a header. Older versions took one that is null."""
        return self._null if key is None else key.encode()

    def _headers(self, headers: list[dict[str, Any]] | None) -> bytes:
        pairs = [self._name(each["key"]) + b":" + self._bytes(each["value"]) for each in headers or ()]
        return self._headers_separator.join(pairs) if pairs else b"NO_HEADERS"


def _timestamp(time: dt.datetime) -> bytes:
    return b"CreateTime:%d" % ((time - _EPOCH) // _MILLISECOND)
