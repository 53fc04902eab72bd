"""The boundary of the clients' public calls: what an argument may be, in one place for all of them.

Values of records are checked in `records` and `python_records`, offsets in `protocol.delayed_operation`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.protocol.topic_name import check_is_text, check_topic_name


def seconds(value: object, name: str) -> float | None:
    """A time to wait, in seconds. None and a negative number are for ever, as in confluent-kafka. Raises
    InvalidRequestException."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidRequestException(f"{name} is {value!r:.80}: give a number of seconds; None and -1 wait for ever")
    return None if value < 0 or value >= threading.TIMEOUT_MAX else float(value)


def milliseconds(value: object, name: str) -> float:
    """A time limit in ms, at most a year; a negative one is over at once. Raises InvalidRequestException."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidRequestException(f"{name} is {value!r:.80}: give a number of milliseconds")
    return float(min(max(value, 0), 365 * 86_400_000))


def topic_names(topics: object) -> frozenset[str]:
    """The topics of a subscription. Raises InvalidRequestException unless they are a collection of names, one at least,
    and InvalidTopicException for a name that no topic can have: a pattern, too."""
    if isinstance(topics, str | bytes) or not isinstance(topics, Collection) or not topics:
        raise InvalidRequestException(f"topics is {topics!r:.80}: give a list of names, one at least")
    for topic in topics:
        check_topic_name(topic)
    return frozenset(topics)


def topic_partitions(partitions: object) -> list[tuple[str, int]]:
    """Pairs of a topic and the number of a partition. Raises InvalidRequestException."""
    found: list[Any] | None = (
        list(partitions) if isinstance(partitions, Iterable) and not isinstance(partitions, str | bytes) else None
    )
    pairs: list[Any] = [()] if found is None else found
    for pair in pairs:
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not _is_whole(pair[1]):
            raise InvalidRequestException(
                f'partitions are {partitions!r:.80}: give pairs of a topic and a number, such as ("orders", 0)'
            )
    return [(topic, number) for topic, number in found or ()]


def by_partition(given: object, name: str) -> Mapping[int, Any]:
    """A value for each partition, by its number. Raises InvalidRequestException."""
    if not isinstance(given, Mapping) or not all(map(_is_whole, given)):
        raise InvalidRequestException(f"{name} are {given!r:.80}: give a dict with numbers of partitions as keys")
    return given


def by_topic(given: object, name: str) -> Mapping[str, Any]:
    """A value for each topic. Raises InvalidRequestException, and InvalidTopicException for a name that is no str."""
    if not isinstance(given, Mapping):
        raise InvalidRequestException(f"{name} are {given!r:.80}: give a dict with names of topics as keys")
    for topic in given:
        check_is_text(topic)
    return given


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
