"""Reads the JSON of the options that name partitions: offsets, timestamps, partitions to read. Spark: `JsonUtils`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.record_batch import TopicPartition

_SHAPES = {
    "offsets": '{"orders": {"0": 23, "1": -2}}',
    "timestamps": '{"orders": {"0": 1735689600000}}',
    "partitions": '{"orders": [0, 1]}',
}


def numbers_of(option: str, text: str, shape: str = "offsets") -> dict[TopicPartition, int]:
    """A number for each partition, such as `{"orders": {"0": 23}}`.

    Raises InvalidConfigurationException, which names the option, and the position of what cannot be read.
    """
    found = {}
    for topic, partitions in _topics(option, text, shape).items():
        if not isinstance(partitions, Mapping):
            raise _wrong(option, f"{json.dumps(topic)} has {json.dumps(partitions)}", shape)
        for partition, number in partitions.items():
            if isinstance(number, bool) or not isinstance(number, int):
                raise _wrong(option, f"{topic}-{partition} has {json.dumps(number)}, which is no whole number", shape)
            found[TopicPartition(topic, _partition(option, topic, partition, shape))] = number
    if not found:
        raise _wrong(option, "it names no partition", shape)
    return found


def partitions_of(option: str, text: str) -> frozenset[TopicPartition]:
    """The partitions of `{"orders": [0, 1]}`. Raises InvalidConfigurationException, as `numbers_of`."""
    found = set()
    for topic, partitions in _topics(option, text, "partitions").items():
        if not isinstance(partitions, list) or not partitions:
            raise _wrong(option, f"{json.dumps(topic)} has {json.dumps(partitions)}", "partitions")
        found |= {TopicPartition(topic, _partition(option, topic, each, "partitions")) for each in partitions}
    if not found:
        raise _wrong(option, "it names no partition", "partitions")
    return frozenset(found)


def _topics(option: str, text: str, shape: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _once(option, pairs, shape))
    except json.JSONDecodeError as error:
        place = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise _wrong(option, f"it is no JSON: {place}", shape) from error
    if not isinstance(found, dict):
        raise _wrong(option, f"it is {json.dumps(found)}", shape)
    return found


def _once(option: str, pairs: list[tuple[str, Any]], shape: str) -> dict[str, Any]:
    """JSON lets the last of two equal names win, which would hide a slip of the pen."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _wrong(option, f"{json.dumps(twice)} is there twice", shape)
    return dict(pairs)


def _partition(option: str, topic: str, given: Any, shape: str) -> int:
    text = given if isinstance(given, str) else json.dumps(given)
    if not (text.isascii() and text.isdigit()) or int(text) > 2**31 - 1:
        raise _wrong(option, f"topic {topic} has {text!r}, which is no number of a partition", shape)
    return int(text)


def _wrong(option: str, found: str, shape: str) -> InvalidConfigurationException:
    return InvalidConfigurationException(f"option {option}: {found}; allowed: JSON such as {_SHAPES[shape]}")
