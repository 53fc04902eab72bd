"""Reads records from lines of text: headers, key and value with separators between them. Kafka: `LineMessageReader`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from lakelog.jobs.console.key_values import Text, checked, flag_of
from lakelog.replication.errors import InvalidConfigurationException, InvalidRecordException
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
_DEFAULTS = {"key.separator": "\t", "headers.delimiter": "\t", "headers.separator": ",", "headers.key.separator": ":"}
# Pairs that would make a line mean two things.
_DIFFER = [
    *combinations(("headers.delimiter", "headers.separator", "headers.key.separator"), 2),
    *(("null.marker", name) for name in _DEFAULTS),
]


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
        texts = {**_DEFAULTS, **{key: str(value) for key, value in given.items() if key in (*_DEFAULTS, "null.marker")}}
        for one, other in _DIFFER:
            if one in texts and texts[one] == texts[other]:
                raise InvalidConfigurationException(f"{flag}: {one} and {other} may not be equal")
        for name in _DEFAULTS:
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
