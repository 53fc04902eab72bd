"""Prints committed records. The flags are those of kafka-console-consumer.sh.

It starts no Spark. Ctrl-C ends it. Then it says on stderr how many records it has printed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import pyarrow as pa

from lakelog.jobs.cli.console import INTERRUPTED, OK, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import until_signalled
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.jobs.console.key_values import Text, add_group, add_properties, checked, client_parser, flag_of, place
from lakelog.jobs.console.record_range import unread_range
from lakelog.jobs.console.record_texts import ENCODINGS, TEXT, json_lines
from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.properties import Boolean, Choice, ValueType
from lakelog.replication.storage.cluster import Cluster

_WAIT_MS = 500
_MAX_BYTES = 52_428_800
_COMMIT_SECONDS = 5.0  # auto.commit.interval.ms
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


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _consume(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = client_parser("console-consumer", __doc__)
    parser.add_argument(
        "--from-beginning", action="store_true", help="begin at the earliest record, not after the latest"
    )
    parser.add_argument("--partition", type=whole_number(0), metavar="N", help="print one partition only")
    parser.add_argument(
        "--offset", type=place, metavar="OFFSET",
        help="where to begin in --partition: earliest, latest, or an offset; default: latest",
    )  # fmt: skip
    add_group(parser)
    parser.add_argument(
        "--unread-by", metavar="GROUP",
        help="print what this group has not consumed, from its committed offsets to the high watermark, and end; it "
        "does not join the group, and commits nothing",
    )  # fmt: skip
    parser.add_argument("--max-messages", type=whole_number(1), metavar="N", help="end after so many records")
    parser.add_argument(
        "--timeout-ms", type=whole_number(0), metavar="MS", help="end if no record comes for so many milliseconds"
    )  # fmt: skip
    parser.add_argument(
        "--formatter", type=formatter_name, default=DEFAULT, metavar="NAME",
        help="default: a line for each record; json: an object for each; logging: as default, and each record on "
        "stderr, too; noop: print no record, only count them",
    )  # fmt: skip
    add_properties(
        parser, ("--formatter-property", "--property"),
        f"how records are printed: {', '.join(PROPERTIES)}; with --formatter json: {', '.join(JSON_PROPERTIES)}, which "
        "is text or base64",
    )  # fmt: skip
    return parser


def _consume(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.offset is not None and (args.partition is None or args.from_beginning):
        parser.error("--offset needs --partition, and does not go with --from-beginning")
    if args.group and args.partition is not None:
        parser.error("--group does not go with --partition")
    if args.unread_by is not None and (args.group or args.from_beginning or args.offset is not None):
        parser.error("--unread-by does not go with --group, --from-beginning or --offset")
    return console_consumer(args)


def console_consumer(args: argparse.Namespace) -> int:
    """Prints records until a signal comes, `--max-messages` were printed, none comes for `--timeout-ms`, or those that
    `--unread-by` chooses are printed. Then it prints the count to stderr. INTERRUPTED after a signal."""
    formatter = formatter_of(args.formatter, args.formatter_property)
    begin = EARLIEST if args.from_beginning else LATEST
    offset = args.offset
    if offset in (EARLIEST, LATEST):
        begin, offset = offset, None
    config, within = settings(args.command_config), None
    if args.unread_by is not None:
        view = TopicView(Cluster.open(args.cluster, config, reads_go_on=True))
        begin, within = EARLIEST, unread_range(view, args.topic, args.partition, args.unread_by)
    reader = ConsoleReader(args.cluster, config, args.topic, begin, args.group, args.partition, offset, within)
    with until_signalled() as is_told:
        ConsoleOutput(reader, formatter).run(args.max_messages, args.timeout_ms, is_told)
    return INTERRUPTED if is_told() else OK


class ConsoleOutput:
    """Writes records to stdout. A group commits the offsets of what was written every 5 seconds, and at the end."""

    def __init__(self, reader: ConsoleReader, formatter: RecordFormatter) -> None:
        self._reader = reader
        self._formatter = formatter
        self._count = 0

    def run(self, most: int | None, timeout_ms: int | None, is_told: Callable[[], bool]) -> None:
        """Writes at most `most` records. Raises what the reader raises, and BrokenPipeError."""
        seconds = math.inf if timeout_ms is None else timeout_ms / 1000
        came_at = committed_at = time.monotonic()
        try:
            while (
                not (self._reader.is_done or is_told()) and self._count != most and time.monotonic() - came_at < seconds
            ):
                if self._write(most, seconds - (time.monotonic() - came_at)):
                    came_at = time.monotonic()
                if time.monotonic() - committed_at >= _COMMIT_SECONDS:
                    self._reader.commit()
                    committed_at = time.monotonic()
        finally:
            say(f"Processed a total of {self._count} messages")
            self._reader.commit()

    def _write(self, most: int | None, seconds: float) -> bool:
        """Fetches once, and writes what came. Returns whether something came."""
        before = self._count
        left = sys.maxsize if most is None else most - self._count
        wait_ms = max(0, min(_WAIT_MS, math.ceil(1000 * min(seconds, 1.0))))
        for records in self._reader.read(wait_ms, left, _MAX_BYTES):
            sys.stdout.buffer.write(self._formatter.lines(records))
            sys.stdout.buffer.flush()
            self._count += records.num_rows
        return self._count > before


class RecordFormatter(Protocol):
    """Turns records into what is printed, by the properties of Kafka's formatters. Kafka: `DefaultMessageFormatter`,
    `LoggingMessageFormatter`, `NoOpMessageFormatter`."""

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
        for written, key, value in zip(
            *(records[name].to_pylist() for name in ("timestamp", "key", "value")), strict=True
        ):
            say(f"{_timestamp(written).decode()}, key:{self._shown(key)}, value:{self._shown(value)}")
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
