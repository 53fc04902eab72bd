"""The boundary of the clients' public calls: what an argument may be, in one place for all of them.

Values of records are checked in `records`, offsets in `protocol.delayed_operation`, requests to the controller in
`protocol.admin_request`, settings in `properties`, and roots in `storage.delta.storage_root`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.properties import is_utf8
from lakelog.replication.protocol.topic import check_is_text, check_topic_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def topic_partitions(partitions: object, name: str = "partitions") -> list[tuple[str, int]]:
    """Pairs of a topic and the number of a partition. Raises InvalidRequestException."""
    found: list[Any] | None = (
        list(partitions) if isinstance(partitions, Iterable) and not isinstance(partitions, str | bytes) else None
    )
    pairs: list[Any] = [()] if found is None else found
    for pair in pairs:
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not _is_whole(pair[1]):
            raise InvalidRequestException(
                f'{name} are {partitions!r:.80}: give pairs of a topic and a number, such as ("orders", 0)'
            )
    return [(topic, number) for topic, number in found or ()]


def by_partition(given: object, name: str) -> Mapping[int, Any]:
    """A value for each partition, by its number. Raises InvalidRequestException."""
    if not isinstance(given, Mapping) or not all(map(_is_whole, given)):
        raise InvalidRequestException(f"{name} are {given!r:.80}: give a dict with numbers of partitions as keys")
    return given


def offsets_by_partition(given: object, name: str) -> Mapping[int, int]:
    """An offset for each partition, by its number. Raises InvalidRequestException."""
    offsets = by_partition(given, name)
    if not all(map(_is_whole, offsets.values())):
        raise InvalidRequestException(f"{name} are {given!r:.80}: give a dict such as {{0: 42}}")
    return offsets


def by_topic(given: object, name: str) -> Mapping[str, Any]:
    """A value for each topic. Raises InvalidRequestException, and InvalidTopicException for a name that is no str."""
    if not isinstance(given, Mapping):
        raise InvalidRequestException(f"{name} are {given!r:.80}: give a dict with names of topics as keys")
    for topic in given:
        check_is_text(topic)
    return given


def text(value: object, name: str) -> str:
    """A text that UTF-8 can hold. Raises InvalidRequestException."""
    if not isinstance(value, str) or not is_utf8(value):
        raise InvalidRequestException(f"{name} is {value!r:.80}: give a text (str) in UTF-8")
    return value


def flag(value: object, name: str) -> bool:
    """True or False. Other values are none, because "no" and "false" are true in Python. Raises
    InvalidRequestException."""
    if not isinstance(value, bool):
        raise InvalidRequestException(f"{name} is {value!r:.80}: give True or False")
    return value


def whole_number(value: object, name: str, low: int, high: int = 2**63 - 1) -> int:
    """An int from `low` to `high`, both allowed. Raises InvalidRequestException."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestException(f"{name} is {value!r:.80}: give a whole number from {low} to {high}")
    return value


def whole_numbers(values: object, name: str) -> list[int]:
    """Ints. Raises InvalidRequestException."""
    found: list[Any] = list(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes) else [None]
    if not all(map(_is_whole, found)):
        raise InvalidRequestException(f"{name} are {values!r:.80}: give a list of whole numbers")
    return found


def function(value: Any, name: str) -> Any:
    """A function, or None. Raises InvalidRequestException."""
    if value is not None and not callable(value):
        raise InvalidRequestException(f"{name} is {value!r:.80}: give a function, or None")
    return value


def mapping(value: object, name: str, example: str) -> Mapping[Any, Any]:
    """A mapping such as the one in the `example`. Raises InvalidRequestException."""
    if not isinstance(value, Mapping):
        raise InvalidRequestException(f"{name} is {value!r:.80}: give a dict such as {example}")
    return value


def spark_session_of(value: object) -> SparkSession:
    """A session of Spark. Raises InvalidRequestException."""
    from pyspark.sql import SparkSession  # imported late: clients do not need Spark

    if not isinstance(value, SparkSession):
        raise InvalidRequestException(f"spark is {value!r:.80}: give a SparkSession, such as lakelog.spark_session()")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
