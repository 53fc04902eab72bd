"""Where a read starts and ends, by its options, in JSON or in words. Spark: `KafkaOffsetRangeLimit`, `JsonUtils`,
`KafkaSourceProvider`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.record_batch import TopicPartition

_SHAPES = {
    "offsets": '{"orders": {"0": 23, "1": -2}}',
    "timestamps": '{"orders": {"0": 1735689600000}}',
    "partitions": '{"orders": [0, 1]}',
}
LATEST, EARLIEST = -1, -2  # in the JSON of offsets, as in Kafka
NAMES = {"earliest": EARLIEST, "latest": LATEST}
ERROR = "error"  # what `startingOffsetsByTimestampStrategy` does without a record that late: fail, or start at the end


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


@dataclass(frozen=True)
class OffsetSpec:
    """One side of a read. The first of these that is set holds.

    `timestamp`: ms since 1970, for all partitions. `timestamps`: the same for each partition. `offsets`: an offset for
    each partition, -1 for latest, -2 for earliest. `is_group`: the offsets that the group has committed. `everywhere`:
    -1 or -2, for all partitions. `option`: the name of the option. `or_latest`: start at the end where no record is as
    late as the timestamp.
    """

    everywhere: int
    option: str = ""
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_group: bool = False
    or_latest: bool = False

    @property
    def named(self) -> Mapping[TopicPartition, int]:
        """The partitions that are named one by one."""
        return {} if self.timestamp is not None else self.timestamps or self.offsets

    def timestamp_of(self, partition: TopicPartition) -> int | None:
        """The timestamp in ms that stands for the partition's offset, None if an offset does."""
        return self.timestamp if self.timestamp is not None else self.timestamps.get(partition)

    def offset_of(self, partition: TopicPartition) -> int:
        """The partition's offset, -1 for latest, -2 for earliest."""
        return self.offsets.get(partition, self.everywhere)


def spec_of(side: str, options: Mapping[str, str], default: str) -> OffsetSpec:
    """The spec of one side, "starting" or "ending". Kafka's precedence: one timestamp, timestamps, offsets.

    Raises InvalidConfigurationException.
    """
    everywhere = NAMES[default]
    strategy = f"{side}OffsetsByTimestampStrategy"
    or_latest = side == "ending" or _one_of(strategy, options.get(strategy, ERROR), (ERROR, "latest")) == "latest"
    if (given := options.get(f"{side}Timestamp")) is not None:
        name = f"{side}Timestamp"
        return OffsetSpec(everywhere, name, timestamp=_timestamp(name, given), or_latest=or_latest)
    if (given := options.get(f"{side}OffsetsByTimestamp")) is not None:
        name = f"{side}OffsetsByTimestamp"
        timestamps = numbers_of(name, given, "timestamps")
        _check_lowest(name, timestamps, 0)
        return OffsetSpec(everywhere, name, timestamps=timestamps, or_latest=or_latest)
    name = f"{side}Offsets"
    given = options.get(name, default).strip()
    if given.lower() in NAMES:
        return OffsetSpec(NAMES[given.lower()], name)
    if side == "starting" and given.lower() == "group":
        return OffsetSpec(everywhere, name, is_group=True)
    if not given.startswith("{"):
        allowed = "earliest, latest, group" if side == "starting" else "latest"
        raise InvalidConfigurationException(
            f'option {name} is {given!r}; allowed: {allowed}, or JSON such as {{"orders": {{"0": 23}}}}'
        )
    offsets = numbers_of(name, given)
    _check_lowest(name, offsets, EARLIEST)
    return OffsetSpec(everywhere, name, offsets=offsets)


def _check_lowest(name: str, numbers: Mapping[TopicPartition, int], lowest: int) -> None:
    for partition, number in numbers.items():
        if number < lowest:
            words = ", -1 for latest and -2 for earliest" if lowest < 0 else ""
            raise InvalidConfigurationException(
                f"option {name}: {partition} has {number}; allowed: whole numbers from 0 on{words}"
            )


def _timestamp(name: str, given: str) -> int:
    text = given.strip()
    if not (text.isascii() and text.isdigit()):
        raise InvalidConfigurationException(f"option {name} is {given!r}; allowed: milliseconds since 1970, from 0 on")
    return int(text)


def _one_of(name: str, given: str, allowed: tuple[str, ...]) -> str:
    if given.lower() not in allowed:
        raise InvalidConfigurationException(f"option {name} is {given!r}; allowed: {', '.join(allowed)}")
    return given.lower()


def check_batch(starting: OffsetSpec, ending: OffsetSpec) -> None:
    """A batch read does not start at the end, nor end at the start. Spark: `KafkaSourceProvider.validateBatchOptions`.

    Raises InvalidConfigurationException.
    """
    if starting.timestamp is None and not starting.timestamps:
        _check_none(starting, LATEST, "latest (-1)", "earliest (-2), group, or an offset from 0 on")
    if ending.timestamp is None and not ending.timestamps:
        _check_none(ending, EARLIEST, "earliest (-2)", "latest (-1), or an offset from 0 on")


def _check_none(spec: OffsetSpec, number: int, words: str, allowed: str) -> None:
    wrong = next((str(partition) for partition, offset in spec.offsets.items() if offset == number), None)
    if wrong or (not spec.offsets and not spec.is_group and spec.everywhere == number):
        raise InvalidConfigurationException(
            f"option {spec.option}: {words}{f' for {wrong}' if wrong else ''} is wrong in a batch read, which would "
            f"read nothing; allowed: {allowed}"
        )
