"""The format of Java's properties files, as far as Kafka's `server.properties` uses it, and of the values in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class ValueType(Protocol):
    """What a value may be: `str()` of it is the text that a person reads."""

    def parse(self, text: str) -> Any:
        """The value; raises ValueError if `text` is not allowed."""


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


class Boolean:
    """`true` or `false`, in any case."""

    def parse(self, text: str) -> bool:
        return {"true": True, "false": False}[text.lower()]

    def __str__(self) -> str:
        return "true or false"


class OptionalText:
    """Any text; an empty one is none."""

    def parse(self, text: str) -> str | None:
        return text or None

    def __str__(self) -> str:
        return "any text"


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


class ThrottledReplicas:
    """`*` for all, or pairs of a partition and a broker: `0:1,0:2`."""

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"(\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?", text):
            raise ValueError(text)
        return text

    def __str__(self) -> str:
        return "* or partition:broker,partition:broker,..."


def text_of(value: object) -> str:
    """A value as a properties file has it: none is empty, truth is lower case."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


class Setting(NamedTuple):
    """A value as it was given, and where: a file and line, or what else holds it."""

    value: str
    where: str


def parse_properties(text: str, source_name: str) -> tuple[dict[str, Setting], list[str]]:
    """Keys and values of a properties text, and what is wrong with it.

    The part of Java's format that Kafka's files use: `key=value`, comments with `#` or `!`, a backslash at the end of
    a line that goes on. Other backslashes stand for themselves. A key that is given twice is a mistake here.
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
    """The lines that hold something, each with its number; one that goes on is one line, under its first number."""
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
