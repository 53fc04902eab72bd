"""Parses properties files and their values, in the part of Java's format that Kafka's `server.properties` uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol


class ValueType(Protocol):
    """The type of a value. `str()` describes the allowed values in an error text."""

    def parse(self, text: str) -> Any:
        """The value. Raises ValueError or KeyError if `text` is not allowed."""


@dataclass(frozen=True)
class Integer:
    """An integer from `low` to `high`, both allowed."""

    low: int
    high: int = 2**31 - 1

    def parse(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", text) or not self.low <= int(text) <= self.high:
            raise ValueError(text)
        return int(text)

    def __str__(self) -> str:
        return f"an integer from {self.low} to {self.high}"


class IntegerOrDefault(Integer):
    """An integer as `Integer`, or -1 for a default that depends on something else."""

    def parse(self, text: str) -> int:
        return -1 if text == "-1" else super().parse(text)

    def __str__(self) -> str:
        return f"{super().__str__()}, or -1 for the default"


@dataclass(frozen=True)
class Share:
    """A number from 0 to 1."""

    def parse(self, text: str) -> float:
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not 0 <= float(text) <= 1:
            raise ValueError(text)
        return float(text)

    def __str__(self) -> str:
        return "a number from 0 to 1"


class Boolean:
    """`true` or `false`, in any case."""

    def parse(self, text: str) -> bool:
        return {"true": True, "false": False}[text.lower()]

    def __str__(self) -> str:
        return "true or false"


class OptionalText:
    """Any text that UTF-8 can hold. An empty one is None."""

    def parse(self, text: str) -> str | None:
        if not is_utf8(text):
            raise ValueError(text)
        return text or None

    def __str__(self) -> str:
        return "any text in UTF-8"


class Choice:
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def parse(self, text: str) -> str:
        if text not in self._words:
            raise ValueError(text)
        return text

    def __str__(self) -> str:
        return " or ".join(self._words)


class CleanupPolicy:
    """`delete`, `compact`, or both with a comma between them; `none` keeps every record."""

    def parse(self, text: str) -> str:
        found = sorted({word.strip() for word in text.split(",")})
        if text != "none" and not {*found} <= {"compact", "delete"}:
            raise ValueError(text)
        return ",".join(found)

    def __str__(self) -> str:
        return "delete, compact, compact,delete or none"


class ThrottledReplicas:
    """`*` for all replicas, or pairs of partition and broker: `0:1,0:2`. Empty for no replica."""

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"(\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?", text):
            raise ValueError(text)
        return text

    def __str__(self) -> str:
        return "* or partition:broker,partition:broker,..."


class CordonedLogDirs:
    """`*` for all log directories of a broker, of which it has one: its root. Empty for none."""

    def parse(self, text: str) -> str:
        if text not in ("", "*"):
            raise ValueError(text)
        return text

    def __str__(self) -> str:
        return "* for the root of the broker, or empty"


def text_of(value: object) -> str:
    """A value as text in a properties file: None is empty, a bool is lower case."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold a text. It cannot hold a lone surrogate, such as a byte of a file name in another encoding
    becomes in Python."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def faults(settings: Any) -> list[str]:
    """The faults of the values of a dataclass whose fields have a `type` in their metadata, each value by itself."""
    return [
        f"{member.name} is {value!r:.80}, it must be {member.metadata['type']}"
        for member in fields(settings)
        if "type" in member.metadata
        and not _is_allowed(member.metadata["type"], value := getattr(settings, member.name), member.default)
    ]


def _is_allowed(allowed: ValueType, value: object, default: object) -> bool:
    if type(value) not in ((str, type(None)) if default is None else (type(default),)):
        return False
    try:
        allowed.parse(text_of(value))
    except (ValueError, KeyError):
        return False
    return True


class Setting(NamedTuple):
    """A value as given, and its source for error texts: a file and line, or another name."""

    value: str
    where: str


def parse_properties(text: str, source_name: str) -> tuple[dict[str, Setting], list[str]]:
    """The settings in a properties text by key, and a list of the errors in it.

    It knows `key=value`, comments with `#` or `!`, and a backslash at the end of a line that continues. Other
    backslashes are kept. Unlike in Java, a key that is given twice is an error.
    """
    given: dict[str, Setting] = {}
    problems = []
    for number, line in _logical_lines(text):
        key, equals, value = (part.strip() for part in line.partition("="))
        where = f"{source_name}, line {number}"
        if not (key and equals):
            problems.append(f"{where}: not of the form key=value")
        elif key in given:
            problems.append(f"{where}: {key} is given twice, first at {given[key].where}")
        else:
            given[key] = Setting(value, where)
    return given, problems


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines, with their numbers, without comments and empty lines. Continued lines are joined, and have the number
    of the first one."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip()
        if not pending and (not stripped or stripped[0] in "#!"):
            continue
        first = first if pending else number
        pending += stripped
        if (len(pending) - len(pending.rstrip("\\"))) % 2 == 0:
            yield first, pending
            pending = ""
        else:
            pending = pending[:-1]
    if pending:
        yield first, pending
