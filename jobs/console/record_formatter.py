"""How `console-consumer` prints records: by the formatters and the properties of Kafka's.

Kafka: `DefaultMessageFormatter`, `LoggingMessageFormatter`, `NoOpMessageFormatter`.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import pyarrow as pa

from lakelog.jobs.cli.console import say
from lakelog.jobs.console.key_values import Text, checked, flag_of
from lakelog.jobs.console.record_texts import ENCODINGS, TEXT, json_lines
from lakelog.replication.properties import Boolean, Choice, ValueType

DEFAULT = "default"
_FLAG = "--formatter-property"
_PRINTED = ("timestamp", "partition", "offset", "epoch", "headers", "key", "value")
PROPERTIES: dict[str, ValueType] = {
    **dict.fromkeys((f"print.{name}" for name in _PRINTED), Boolean()),
    **dict.fromkeys(("key.separator", "line.separator", "headers.separator", "null.literal"), Text()),
}
JSON_PROPERTIES: dict[str, ValueType] = {"encoding": Choice(*ENCODINGS)}
_DEFAULTS = {
    "print.value": True,
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


class RecordFormatter(Protocol):
    """Turns records into what is printed."""

    def lines(self, records: pa.Table) -> bytes:
        """The lines of records, with the columns of `schemas.LOG`."""


def formatter_name(text: str) -> str:
    """A type of argparse: the name of a formatter."""
    if text in FORMATTERS:
        return text
    what = "is a Java class, and there is no Java here" if "." in text else "is no formatter"
    raise argparse.ArgumentTypeError(f"{text!r} {what}; allowed: {', '.join(FORMATTERS)}")


def formatter_of(name: str, pairs: Collection[tuple[str, str]]) -> RecordFormatter:
    """The formatter of a name with these properties. Raises InvalidConfigurationException for a property that it does
    not have, or a wrong value."""
    return FORMATTERS[name](pairs)


class LineFormatter:
    """Formats each record as a line, with the properties and the defaults of Kafka's. Raises
    InvalidConfigurationException for an unknown property or a wrong value."""

    def __init__(self, pairs: Collection[tuple[str, str]] = ()) -> None:
        given: Mapping[str, Any] = {**_DEFAULTS, **checked(pairs, PROPERTIES, _FLAG)}
        self._separator, self._end = given["key.separator"].encode(), given["line.separator"].encode()
        self._headers_separator, self._null = given["headers.separator"].encode(), given["null.literal"].encode()
        fields: dict[str, tuple[str, Callable[[Any], bytes]]] = {
            "print.timestamp": ("timestamp", _timestamp),
            "print.partition": ("partition", lambda number: b"Partition:%d" % number),
            "print.offset": ("offset", lambda number: b"Offset:%d" % number),
            "print.epoch": ("leader_epoch", lambda number: b"Epoch:%d" % number),
            "print.headers": ("headers", self._headers),
            "print.key": ("key", self._bytes),
            "print.value": ("value", self._bytes),
        }
        self._fields = [fields[name] for name in fields if given.get(name)]

    def lines(self, records: pa.Table) -> bytes:
        """A line for each record."""
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


class LoggingFormatter(LineFormatter):
    """The lines of `LineFormatter`; the timestamp, the key and the value of each record go to stderr, too."""

    def lines(self, records: pa.Table) -> bytes:
        """A line for each record."""
        for time, key, value in zip(
            *(records[name].to_pylist() for name in ("timestamp", "key", "value")), strict=True
        ):
            say(f"{_timestamp(time).decode()}, key:{self._shown(key)}, value:{self._shown(value)}")
        return super().lines(records)

    def _shown(self, content: bytes | None) -> str:
        return self._bytes(content).decode(errors="backslashreplace")


class NoOpFormatter(LineFormatter):
    """Prints nothing: records are only counted. It takes the properties of `LineFormatter`."""

    def lines(self, records: pa.Table) -> bytes:
        """No bytes."""
        return b""


class JsonRecordFormatter:
    """Formats each record as an object of JSON in a line. Its only property is `encoding`: of keys, values and
    headers. Raises InvalidConfigurationException for another property or a wrong value."""

    def __init__(self, pairs: Collection[tuple[str, str]] = ()) -> None:
        self._encoding = str(checked(pairs, JSON_PROPERTIES, _FLAG).get("encoding", TEXT))
        self._hint = f"give {flag_of(pairs, _FLAG)} encoding=base64"

    def lines(self, records: pa.Table) -> bytes:
        """A line for each record. Raises InvalidRecordException for bytes that are no text."""
        return json_lines(records, self._encoding, self._hint)


FORMATTERS: Mapping[str, Callable[[Collection[tuple[str, str]]], RecordFormatter]] = {
    DEFAULT: LineFormatter,
    "json": JsonRecordFormatter,
    "logging": LoggingFormatter,
    "noop": NoOpFormatter,
}


def _timestamp(time: dt.datetime) -> bytes:
    return b"CreateTime:%d" % ((time - _EPOCH) // _MILLISECOND)
