"""Offsets that a reset gives a group, the CSV in which they are kept, and how far a group is behind.
Kafka: `ConsumerGroupCommand`."""

import csv
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST, committed_batches, offset_for, records_of
from lakelog.replication.clients.partition_reader import OpenPartition
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import OffsetRange

# The new offset of a partition; the second argument is the committed one, None if there is none.
Rule: TypeAlias = Callable[[OpenPartition, int | None], int]

_FORM = "allowed: topic,partition,offset or group,topic,partition,offset, such as orders,0,42"
_MICROSECONDS = 1000  # in a millisecond


def to_time(time: int) -> Rule:
    """The first record since `time`, in ms since 1970; the high watermark if there is none as late as that."""
    return lambda led, _: _offset(led, max(0, time))


def to_offset(offset: int) -> Rule:
    """This offset, or the nearest one that the log has."""
    return lambda led, _: _within(led, offset)


def shift_by(records: int) -> Rule:
    """So many records after the committed offset, within the log.

    The rule raises InvalidRequestException for a partition without a committed offset.
    """

    def shifted(led: OpenPartition, committed: int | None) -> int:
        if committed is None:
            raise InvalidRequestException(
                f"{led.registration.name}: there is no committed offset that --shift-by could start from"
            )
        return _within(led, committed + records)

    return shifted


def _earliest(led: OpenPartition, _: int | None) -> int:
    return _offset(led, EARLIEST)


def _latest(led: OpenPartition, _: int | None) -> int:
    return _offset(led, LATEST)


def _current(led: OpenPartition, committed: int | None) -> int:
    return _latest(led, None) if committed is None else committed


TO_EARLIEST, TO_LATEST, TO_CURRENT = _earliest, _latest, _current


def _offset(led: OpenPartition, time: int) -> int:
    found = offset_for(led, time) or offset_for(led, LATEST)
    assert found is not None, "every partition has a high watermark"
    return found.offset


def _within(led: OpenPartition, offset: int) -> int:
    """As Kafka's tool does it, with the same words."""
    for bound, is_outside, what in (
        (_earliest(led, None), offset.__lt__, "lower than earliest"),
        (_latest(led, None), offset.__gt__, "higher than latest"),
    ):
        if is_outside(bound):
            say(
                f"lakelog: warning: new offset ({offset}) is {what} offset for topic partition "
                f"{led.registration.name}: it becomes {bound}"
            )
            return bound
    return offset


class OffsetFile(NamedTuple):
    """Offsets by group, topic and partition. The group is empty where a line names none."""

    path: str
    offsets: Mapping[tuple[str, str, int], int]

    @property
    def has_groups(self) -> bool:
        """Whether the lines name groups: all do, or none."""
        return all(group for group, *_ in self.offsets)

    def of(self, group: str) -> dict[TopicPartition, int]:
        """The offsets of a group. Raises InvalidRequestException if there are none."""
        found = {(topic, number): o for (name, topic, number), o in self.offsets.items() if name in ("", group)}
        if not found:
            raise InvalidRequestException(f"{self.path}: it has no offsets for group {group}")
        return found

    def rule(self, group: str) -> Rule:
        """The offset of each partition in the file, or the nearest one that the log has."""
        offsets = self.of(group)
        return lambda led, committed: to_offset(offsets[led.registration.topic, led.registration.partition])(
            led, committed
        )


def read_offset_file(path: str) -> OffsetFile:
    """Reads the CSV, with or without a byte order mark. Raises ArgumentTypeError, which names a line that is wrong."""
    try:
        lines = list(csv.reader(Path(path).read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArgumentTypeError(f"{path} cannot be read: {error}") from None
    found: dict[tuple[str, str, int], int] = {}
    for number, words in enumerate(lines, 1):
        if words:
            key, offset = _parsed(f"{path}, line {number}", words)
            if key in found:
                raise ArgumentTypeError(f"{path}, line {number}: {key[1]}-{key[2]} is given twice")
            found[key] = offset
    if len({not group for group, *_ in found}) != 1:
        raise ArgumentTypeError(f"{path}: " + ("some lines lack the group" if found else f"it is empty; {_FORM}"))
    return OffsetFile(path, found)


def _parsed(place: str, words: list[str]) -> tuple[tuple[str, str, int], int]:
    *group, topic, partition, offset = words if len(words) in (3, 4) else ("", "", "", "")
    try:
        numbers = whole_number(0, 2**31 - 1)(partition), whole_number(0, MAX_OFFSET)(offset)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{place}: {','.join(words)!r}; {_FORM}") from None
    if not topic or group == [""]:
        raise ArgumentTypeError(f"{place}: {','.join(words)!r}; {_FORM}")
    return ("".join(group), topic, numbers[0]), numbers[1]


def print_offsets(groups: Mapping[str, Mapping[TopicPartition, int]]) -> None:
    """Prints what `read_offset_file` reads, as Kafka's tool does: without the group if there is only one."""
    rows: Iterable[list[object]] = (
        [*([name] if len(groups) > 1 else []), topic, number, offset]
        for name, offsets in groups.items()
        for (topic, number), offset in offsets.items()
    )
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)


class Lag(NamedTuple):
    """The high watermark, and what lies between a committed offset and it; None without a committed offset.

    `records`: see `record_lag`. `bytes` is of keys and values. `ms` is the time between the next record to read and the
    newest one, by their own timestamps.
    """

    end_offset: int
    records: int | None = None
    ms: int | None = None
    bytes: int | None = None


def record_lag(end_offset: int, committed: int) -> int:
    """The records that a group has not read yet: the high watermark less the committed offset. It counts records that
    were deleted, too. Kafka: `ConsumerGroupCommand`."""
    return end_offset - committed


def lag_of(led: OpenPartition, committed: int | None) -> Lag:
    """The lag of a group that has committed this offset. Of the files it reads the timestamps of the first batch that
    has such a record.

    Raises OffsetNotAvailableException as long as a new leader does not know how much is committed.
    """
    found = offset_for(led, LATEST)
    assert found is not None, "every partition has a high watermark"
    end = found.offset
    if committed is None:
        return Lag(end)
    unread = [batch for batch in committed_batches(led) if batch.header.next_offset > committed]
    size = sum(batch.header.retained_within(OffsetRange(committed, end))[1] for batch in unread)
    return Lag(end, record_lag(end, committed), _milliseconds(led, unread, committed), size)


def _milliseconds(led: OpenPartition, unread: list[PlacedBatch], committed: int) -> int:
    if not unread:
        return 0
    times = (time for batch in unread for offset, time in records_of(led, batch) if offset >= committed)
    next_record = next(times, None)
    newest = max(batch.header.max_timestamp for batch in unread)
    return max(0, newest - next_record) // _MICROSECONDS if next_record is not None else 0
