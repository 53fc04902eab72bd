"""The filters of a query that spare reading: on topic, partition, offset and timestamp."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from lakelog.replication.clients.source.read_plan import Bounds
from lakelog.replication.protocol.record_batch import TopicPartition

_Values: TypeAlias = frozenset[Any]
_LARGEST = 2**63 - 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class PushedFilters:
    """What the filters let pass: topics and partitions (None: all), offsets from `first` to `last`, and records whose
    timestamp is `since` or later (microseconds since 1970)."""

    topics: _Values | None = None
    numbers: _Values | None = None
    first: int = 0
    last: int = _LARGEST
    since: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> PushedFilters:
        """The filters that all must hold; those on other columns, or of other kinds, are left to Spark."""
        topics = numbers = since = None
        first, last = 0, _LARGEST
        for each in filters:
            column, values = _column_of(each), _values_of(each)
            low, high = _range_of(each, values) if column in (("offset",), ("timestamp",)) else (None, None)
            if column == ("topic",) and values is not None:
                topics = values if topics is None else topics & values
            elif column == ("partition",) and values is not None:
                numbers = values if numbers is None else numbers & values
            elif column == ("offset",):
                first = first if low is None else max(first, low)
                last = last if high is None else min(last, high)
            elif column == ("timestamp",) and low is not None:
                since = low if since is None else max(since, low)
        return cls(topics, numbers, first, last, since)

    def within(self, bounds: Bounds) -> dict[TopicPartition, tuple[int, int]]:
        """The bounds of what passes."""
        return {
            partition: (max(start, self.first), min(stop, self.last + 1))
            for partition, (start, stop) in bounds.items()
            if (self.topics is None or partition.topic in self.topics)
            and (self.numbers is None or partition.partition in self.numbers)
        }


NO_FILTERS = PushedFilters()


def _column_of(given: Filter) -> tuple[str, ...]:
    return tuple(getattr(given, "attribute", ()))


def _values_of(given: Filter) -> _Values | None:
    """The values that an equality names."""
    if isinstance(given, EqualTo):
        return frozenset([given.value])
    return frozenset(given.value) if isinstance(given, In) else None


def _range_of(given: Filter, values: _Values | None) -> tuple[int | None, int | None]:
    """The least and the largest number that pass, None where the filter sets no such bound."""
    if values is not None:
        found = [_number(value) for value in values if value is not None]
        return (min(found), max(found)) if found else (None, None)
    if isinstance(given, GreaterThan | GreaterThanOrEqual):
        return _number(given.value) + isinstance(given, GreaterThan), None
    if isinstance(given, LessThan | LessThanOrEqual):
        return None, _number(given.value) - isinstance(given, LessThan)
    return None, None


def _number(value: dt.datetime | int) -> int:
    """An offset, or a timestamp as microseconds since 1970."""
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // dt.timedelta(microseconds=1)
    return value
