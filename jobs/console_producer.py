"""Sends each line of standard input as a record. The flags are those of kafka-console-producer.sh.

It starts no Spark. The exit status is 1 if a record was not delivered.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from lakelog.jobs.cli.console import FAILED, OK, run, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.jobs.console.key_values import (
    Text,
    add_producer_properties,
    add_properties,
    checked,
    client_parser,
    flag_of,
    producer_of,
)
from lakelog.replication.clients.delivery_reports import ProducedMessage
from lakelog.replication.errors import (
    InvalidConfigurationException,
    InvalidRecordException,
    LakelogException,
    RecordTooLargeException,
)
from lakelog.replication.properties import Boolean, ValueType

Header = tuple[str, bytes | None]

PROPERTIES: dict[str, ValueType] = {
    "parse.key": Boolean(),
    "key.separator": Text(),
    "parse.headers": Boolean(),
    "headers.delimiter": Text(),
    "headers.separator": Text(),
    "headers.key.separator": Text(),
    "null.marker": Text(),
    "ignore.error": Boolean(),
}
_LINE_DEFAULTS = {
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
}
# Pairs that would make a line mean two things.
_DIFFER = [
    *combinations(("headers.delimiter", "headers.separator", "headers.key.separator"), 2),
    *(("null.marker", name) for name in _LINE_DEFAULTS),
]

_DEFAULTS = {"linger.ms": 1000}


@dataclass(frozen=True)
class LineRecord:
    """The record of a line."""

    value: bytes | None
    key: bytes | None = None
    headers: list[Header] | None = None


class LineReader:
    """Reads a record from each line: `headers<delimiter>key<separator>value`; by default the line is the value.

    The properties and their defaults are Kafka's. Bytes that are not UTF-8 stay as they are. Raises
    InvalidConfigurationException for an unknown property, a wrong value, or separators that are equal.
    """

    def __init__(self, pairs: Collection[tuple[str, str]] = ()) -> None:
        flag = flag_of(pairs, "--reader-property")
        given = checked(pairs, PROPERTIES, flag)
        self._parses_key, self._parses_headers = bool(given.get("parse.key")), bool(given.get("parse.headers"))
        self._ignores_errors = bool(given.get("ignore.error"))
        texts = {
            **_LINE_DEFAULTS,
            **{key: str(value) for key, value in given.items() if key in (*_LINE_DEFAULTS, "null.marker")},
        }
        for one, other in _DIFFER:
            if one in texts and texts[one] == texts[other]:
                raise InvalidConfigurationException(f"{flag}: {one} and {other} may not be equal")
        for name in _LINE_DEFAULTS:
            if not texts[name]:
                raise InvalidConfigurationException(f"{flag}: {name} is empty")
        self._words = {name: text.encode() for name, text in texts.items()}

    def records(self, lines: Iterable[bytes]) -> Iterator[LineRecord]:
        """The records of lines, which may end with a line feed. Raises InvalidRecordException, which names the line, if
        a separator is missing; with `ignore.error` what is missing is null."""
        for number, line in enumerate(lines, 1):
            yield self._record(line.removesuffix(b"\n").removesuffix(b"\r"), number)

    def _record(self, line: bytes, number: int) -> LineRecord:
        headers, rest = self._before(self._parses_headers, line, "headers.delimiter", number, line)
        key, value = self._before(self._parses_key, rest, "key.separator", number, line)
        split = None if self._or_null(headers) is None else self._headers(headers or b"", number)
        return LineRecord(self._or_null(value), self._or_null(key), split)

    def _before(self, is_wanted: bool, text: bytes, name: str, number: int, line: bytes) -> tuple[bytes | None, bytes]:
        """The text before a separator, and the text behind it."""
        if not is_wanted:
            return None, text
        before, separator, behind = text.partition(self._words[name])
        if separator:
            return before, behind
        if self._ignores_errors:
            return None, text
        raise InvalidRecordException(f"line {number} has no {name}: {_shown(line)}")

    def _headers(self, text: bytes, number: int) -> list[Header]:
        return [self._header(pair, number) for pair in text.split(self._words["headers.separator"])]

    def _header(self, pair: bytes, number: int) -> Header:
        name, separator, value = pair.partition(self._words["headers.key.separator"])
        if not separator and not self._ignores_errors:
            raise InvalidRecordException(f"line {number}: a header has no headers.key.separator: {_shown(pair)}")
        if self._or_null(name) is None:
            raise InvalidRecordException(f"line {number}: the name of a header is the null.marker: {_shown(pair)}")
        try:
            return name.decode(), self._or_null(value) if separator else None
        except UnicodeDecodeError:
            raise InvalidRecordException(f"line {number}: the name of a header is not UTF-8: {_shown(pair)}") from None

    def _or_null(self, text: bytes | None) -> bytes | None:
        return None if text == self._words.get("null.marker") else text


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="backslashreplace"))


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), console_producer, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = client_parser("console-producer", __doc__)
    add_properties(
        parser, ("--reader-property", "--property"),
        f"how lines are read: {', '.join(PROPERTIES)}; by default a line is a value",
    )  # fmt: skip
    add_producer_properties(parser, "--producer-property")
    parser.add_argument(
        "--acks", "--request-required-acks", metavar="ACKS",
        help="all or -1: wait for all in-sync replicas; 1: wait for the leader; 0: do not wait; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=whole_number(0), metavar="BYTES",
        help="most bytes of records that wait for others; default: 1048576",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=whole_number(0), metavar="MS",
        help="how long a record waits for others, in milliseconds; default: 1000",
    )  # fmt: skip
    parser.add_argument(
        "--max-block-ms", type=whole_number(0, MAX_OFFSET), metavar="MS",
        help="how long a record waits for memory, in milliseconds; default: 60000",
    )  # fmt: skip
    parser.add_argument("--sync", action="store_true", help="wait for each record before the next line is read")
    return parser


def console_producer(args: argparse.Namespace) -> int:
    """Sends a record for each line of stdin, until it ends. FAILED if a record was not delivered.

    It sends the records that it has read before a wrong line, a signal or Ctrl-C. Raises InvalidRecordException, and as
    `Producer.produce`; the error of a record that is too large names the line.
    """
    reader = LineReader(args.reader_property)
    sizes = {"batch.size": args.batch_size, "linger.ms": args.timeout, "max.block.ms": args.max_block_ms}
    given = {"acks": args.acks, **sizes}
    exit_when_signalled()
    errors = DeliveryErrors()
    with producer_of(args, args.producer_property, "--producer-property", given, _DEFAULTS) as producer:
        for number, record in enumerate(reader.records(_lines()), 1):
            try:
                producer.produce(args.topic, record.value, record.key, None, errors.report, headers=record.headers)
            except RecordTooLargeException as error:
                raise RecordTooLargeException(f"line {number}: {error}") from None
            producer.flush() if args.sync else producer.poll()
    return errors.status()


class DeliveryErrors:
    """Counts the records that were not delivered, by their errors, and prints each error once."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, error: BaseException, topic: str, records: int = 1) -> None:
        """So many records were not delivered."""
        name = error.name if isinstance(error, LakelogException) else type(error).__name__
        words = f"{name}: {error}"
        if words not in self._counts:
            say(f"lakelog: {topic}: a record was not delivered: {words}")
        self._counts[words] += records

    def report(self, error: BaseException | None, message: ProducedMessage) -> None:
        """The report of a record."""
        if error is not None:
            self.note(error, message.topic())

    def status(self) -> int:
        """The status of the verb. Prints how many records were not delivered."""
        failed = self._counts.total()
        if failed:
            say(f"lakelog: {failed} records were not delivered")
        return FAILED if failed else OK


def _lines() -> Iterator[bytes]:
    """The lines of stdin, with a prompt before each if it is a terminal."""
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            print(">", end="", flush=True)
        try:
            line = sys.stdin.buffer.readline()
        except OSError as error:  # it is closed, or its disk fails
            raise InvalidRecordException(f"standard input: {error.strerror}") from None
        if not line:
            return
        yield line
