"""The CSV of a reset: what `--export` prints and `--from-file` reads. Kafka: `CsvUtils` of `ConsumerGroupCommand`."""

import csv
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from lakelog.jobs.admin.group_reset import Rule, to_offset
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.replication.errors import InvalidRequestException

_FORM = "allowed: topic,partition,offset or group,topic,partition,offset, such as orders,0,42"


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
