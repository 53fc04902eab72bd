"""The parts of all pages of the console: the query of a request, and the content that a template shows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.cli.times import past_time
from lakelog.jobs.web.shared_readings import ConsoleReadings
from lakelog.replication.errors import (
    GroupIdNotFoundException,
    LakelogException,
    UnknownTopicIdException,
    UnknownTopicOrPartitionException,
)

Item = TypeVar("Item")

PAGE_SIZE = 100  # rows of a table on one page
MOST_PAGES = 1_000_000
_MOST_TEXT = 300  # characters of a value of the address
_SHOWN = 60  # characters of a wrong value in a message

_NOT_FOUND = (UnknownTopicOrPartitionException, UnknownTopicIdException, GroupIdNotFoundException)


class PageError(Exception):
    """Why a page cannot be shown, as one sentence, and the status and further headers of the answer."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers or {}


def not_found(sentence: str) -> PageError:
    """The error of an address that names something which is not there."""
    return PageError(404, sentence)


def page_error(error: LakelogException | OSError) -> PageError:
    """The error of a page for one of the cluster or of its roots."""
    if isinstance(error, LakelogException):
        return not_found(str(error)) if isinstance(error, _NOT_FOUND) else PageError(503, f"{error.name}: {error}")
    words = error.strerror or str(error)
    return PageError(503, f"{error.filename}: {words}" if error.filename else words)


class Query:
    """The values of a request's address. A wrong one raises PageError 400, which names it and what is allowed."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def allow(self, *names: str) -> None:
        """Raises PageError if the address has a value of any other name."""
        for name in self._values:
            if name not in names:
                allowed = f"allowed are {', '.join(names)}" if names else "this page takes none"
                raise PageError(400, f"{_short(name)!r} is no parameter of this page: {allowed}")

    def text(self, name: str, most: int = _MOST_TEXT) -> str:
        """A text, empty by default. `most`: how many characters are allowed."""
        value = self._one(name)
        if len(value) > most:
            raise PageError(400, f"parameter {name} has {len(value)} characters: at most {most} are allowed")
        return value

    def whole(self, name: str, low: int, high: int, default: int) -> int:
        """A whole number within bounds, both allowed."""
        found = self.optional(name, whole_number(low, high))
        return default if found is None else found

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """One of some words, by default the first."""
        value = self._one(name) or allowed[0]
        if value not in allowed:
            raise PageError(400, f"parameter {name} is {_short(value)!r}: allowed are {', '.join(map(repr, allowed))}")
        return value

    def time(self, name: str) -> float | None:
        """A time that is over, in seconds since the epoch; None without one."""
        return self.optional(name, past_time)

    def optional(self, name: str, parse: Callable[[str], Item]) -> Item | None:
        """A value by a type of argparse; None if it is empty or missing."""
        value = self.text(name).strip()
        return None if not value else _parsed(name, value, parse)

    def several(self, name: str, parse: Callable[[str], Item]) -> list[Item]:
        """Values of one name, each given once or several with commas between them."""
        words = [word.strip() for value in self._values.get(name, ()) for word in value.split(",")]
        if len(words) > _MOST_TEXT:
            raise PageError(400, f"parameter {name} has {len(words)} values: at most {_MOST_TEXT} are allowed")
        return [_parsed(name, word, parse) for word in words if word]

    def page(self) -> int:
        """The number of the page, from 1 on."""
        return self.whole("page", 1, MOST_PAGES, 1)

    def changed(self, **values: object) -> str:
        """The query with some values replaced, ready for a link; an empty value is left out."""
        new = self._values | {name: [str(value)] for name, value in values.items() if value is not None}
        return urlencode([(name, value) for name, given in new.items() for value in given if value])

    def _one(self, name: str) -> str:
        return self._values.get(name, [""])[-1]


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "…"


def _parsed(name: str, value: str, parse: Callable[[str], Item]) -> Item:
    try:
        return parse(value)
    except argparse.ArgumentTypeError as error:
        raise PageError(400, f"parameter {name}: {error}") from None


class Sources(NamedTuple):
    """Other ways to the content of a page: commands, and Spark SQL over the views of `register_views`."""

    commands: Sequence[str]
    sql: Sequence[str] = ()


class Content(NamedTuple):
    """A page: its template with what that shows, the time of the reading in seconds since the epoch, and what gives the
    same."""

    template: str
    title: str
    at: float
    facts: Mapping[str, object]
    sources: Sources


class Console(NamedTuple):
    """The readings and services that pages use."""

    readings: ConsoleReadings
    invocation: Invocation

    def command(self, verb: str, *words: object) -> str:
        """A command of this cluster."""
        return self.invocation.command(verb, *words).strip("`")


def option(name: str, value: object) -> Sequence[object]:
    """An option with its value, as words of a command: one word if the value would be taken for an option."""
    return (f"{name}={value}",) if str(value).startswith("-") else (name, value)


class PageRequest(NamedTuple):
    """A request for a page: the name that its path has, if any, and its query, or the values of its form."""

    name: str
    query: Query


Page: TypeAlias = Callable[[Console, PageRequest], Content]


class Paged(NamedTuple, Generic[Item]):
    """A part of a long list. `pages`: how many there are; `links`: the queries of the other pages around this one."""

    items: Sequence[Item]
    number: int
    pages: int
    total: int
    first: int
    older: str | None
    newer: str | None


def paged(items: Sequence[Item], query: Query, size: int = PAGE_SIZE) -> Paged[Item]:
    """The items of the page that the query asks for. Raises PageError 404 if there is no such page."""
    number, pages = query.page(), max(1, -(-len(items) // size))
    if number > pages:
        raise not_found(f"there is no page {number}: the last one is {pages}")
    start = (number - 1) * size
    newer = query.changed(page=number - 1) if number > 1 else None
    older = query.changed(page=number + 1) if number < pages else None
    return Paged(items[start : start + size], number, pages, len(items), start + 1, older, newer)


def url(*parts: object, **query: object) -> str:
    """A path of the console, with each part and each value percent-encoded."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    values = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(values)}" if values else path


def group_url(group: str) -> str:
    """The path of a group, whose id may be any text: browsers resolve `.` and `..`, and servers decode `/`."""
    is_plain = group.strip(".") and not {*group} & {"/", "\\"} and group.isprintable()
    return url("groups", group) if is_plain else url("groups", id=group)


def sql_text(value: str) -> str:
    """A text in SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
