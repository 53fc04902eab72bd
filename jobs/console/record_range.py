"""A range of a topic: the offsets of each partition that the options of a verb choose, up to the high watermark."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number, whole_numbers
from lakelog.jobs.cli.times import since
from lakelog.replication.clients.committed_range import check_partitions
from lakelog.replication.clients.offset_lookup import LATEST, offset_for
from lakelog.replication.clients.partition_reader import OpenPartition, ask_leaders
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    InvalidRequestException,
    LakelogException,
    UnknownTopicIdException,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import OffsetRange

# Where a range begins or ends in a partition, before that is fitted to the records that it has.
Bound = Callable[[OpenPartition], int]


class GivenTime(NamedTuple):
    """A time of the command line: as it was given, and in milliseconds since 1970."""

    text: str
    milliseconds: int


class PartitionRange(NamedTuple):
    """The offsets of a partition in a range, about how many records they have, with how many bytes of keys and values,
    and the partition's high watermark."""

    offsets: OffsetRange
    records: int
    bytes: int
    high_watermark: int


class RecordRange(NamedTuple):
    """The range of each partition, and the id of the topic that the offsets belong to."""

    topic: str
    topic_id: str
    partitions: Mapping[int, PartitionRange]

    @property
    def length(self) -> int:
        """How many offsets there are: at least as many as records."""
        return sum(stop - start for start, stop in (each.offsets for each in self.partitions.values()))

    def begin_at(self, positions: Mapping[int, int]) -> RecordRange:
        """The range without the offsets before these positions. Records and bytes are shared out by offsets."""
        return self._replace(partitions={n: _rest(each, positions.get(n, 0)) for n, each in self.partitions.items()})


def add_range(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose a range, and keys in it."""
    parser.add_argument(
        "--partitions", type=whole_numbers(0), metavar="0,1,2", help="partitions of the topic; default: all"
    )  # fmt: skip
    starts = parser.add_argument_group("where the range begins; default: at the log start")
    start = starts.add_mutually_exclusive_group()
    start.add_argument(
        "--offset", type=whole_number(0, MAX_OFFSET), metavar="O", help="first offset, in each of the partitions"
    )
    start.add_argument(
        "--since", type=_time, metavar="TIME",
        help="from the first record on that is as late as this: 2025-01-31T12:00:00 in UTC, or a duration such as "
        "PT1H30M or P7D until now",
    )  # fmt: skip
    stops = parser.add_argument_group("where the range ends; default, and at most: at the high watermark")
    stop = stops.add_mutually_exclusive_group()
    stop.add_argument(
        "--before-offset", type=whole_number(0, MAX_OFFSET), metavar="O",
        help="first offset that is left out, in each of the partitions",
    )  # fmt: skip
    stop.add_argument(
        "--until", type=_time, metavar="TIME",
        help="up to the first record that is as late as this, which is left out; as --since",
    )  # fmt: skip
    parser.add_argument(
        "--key", action="append", metavar="KEY", help="only records with this key, as UTF-8; give it once for each key"
    )


def _time(text: str) -> GivenTime:
    return GivenTime(text, round(since(text) * 1000))


def range_of(view: TopicView, topic: str, args: argparse.Namespace) -> RecordRange:
    """The range that the options of `add_range` choose. Offsets that were deleted are left out; that is said if
    `--offset` names one of them.

    Raises UnknownTopicOrPartitionException, InvalidPartitionsException, and what the leaders' tables raise.
    """
    known = view.partitions(topic)
    numbers = _chosen(topic, known, args.partitions)

    def start(led: OpenPartition) -> int:
        return args.offset if args.since is None else _at(led, args.since)

    def stop(led: OpenPartition) -> int:
        return args.before_offset if args.until is None else _at(led, args.until)

    return _resolved(
        view, topic, numbers,
        None if args.offset is None and args.since is None else start,
        None if args.before_offset is None and args.until is None else stop,
        says_deleted=args.offset is not None,
    )  # fmt: skip


def unread_range(view: TopicView, topic: str, partition: int | None, group: str) -> RecordRange:
    """The records of a topic, or of one partition, from the offset that a group has committed to the high watermark;
    in a partition without such an offset all of them. It neither joins the group nor commits.

    Raises InvalidRequestException if the group has committed nothing of the topic, and as `range_of`.
    """
    known = view.partitions(topic)
    numbers = _chosen(topic, known, None if partition is None else [partition])
    kept = view.cluster.groups.committed(group)
    committed = {number: kept.get(r.topic_id_partition) for number, r in known.items()}
    if not any(offset is not None for offset in committed.values()):
        raise InvalidRequestException(
            f"group {group} has committed no offsets of topic {topic}: print all records with --from-beginning"
        )
    return _resolved(view, topic, numbers, lambda led: committed[led.registration.partition] or 0)


def _chosen(topic: str, known: Mapping[int, PartitionRegistration], wanted: Collection[int] | None) -> list[int]:
    if wanted is None:
        return sorted(known)
    check_partitions(topic, known, wanted)
    return sorted(set(wanted))


def _at(led: OpenPartition, time: GivenTime) -> int:
    """The first record that is as late as a time; the high watermark if there is none."""
    found = offset_for(led, time.milliseconds)
    return led.high_watermark if found is None else found.offset


def _resolved(
    view: TopicView, topic: str, numbers: Iterable[int], start: Bound | None, stop: Bound | None = None,
    says_deleted: bool = False,
) -> RecordRange:  # fmt: skip
    def ask(led: OpenPartition) -> tuple[str, PartitionRange]:
        end = offset_for(led, LATEST)
        assert end is not None, "every partition has a high watermark"
        first, wanted = led.log.log_start_offset, 0 if start is None else start(led)
        if says_deleted and wanted < first:
            say(f"lakelog: {led.registration.name}: the records below offset {first} are deleted, it begins there")
        last = min(end.offset, end.offset if stop is None else stop(led))
        offsets = OffsetRange(min(max(first, wanted), end.offset), last)
        offsets = OffsetRange(offsets.start, max(offsets))
        return led.registration.topic_id, PartitionRange(offsets, *_retained(led, offsets), end.offset)

    deadline = time.monotonic() + view.cluster.config.request_timeout_ms / 1000
    answers = ask_leaders(view, topic, list(numbers), ask, deadline)
    found: dict[int, tuple[str, PartitionRange]] = {}
    for number, answer in answers.items():
        if isinstance(answer, LakelogException):
            raise answer
        found[number] = answer
    ids = {topic_id for topic_id, _ in found.values()}
    if len(ids) > 1:
        raise UnknownTopicIdException(f"topic {topic} was made again just now; call the command again")
    return RecordRange(topic, next(iter(ids), ""), {number: each for number, (_, each) in found.items()})


def _rest(whole: PartitionRange, position: int) -> PartitionRange:
    start, stop = whole.offsets
    left = OffsetRange(min(max(start, position), stop), stop)
    records, size = (n * (left.stop - left.start) // max(1, stop - start) for n in (whole.records, whole.bytes))
    return whole._replace(offsets=left, records=records, bytes=size)


def _retained(led: OpenPartition, offsets: OffsetRange) -> tuple[int, int]:
    """About how many records and bytes there are, by the headers of the batches."""
    parts = [batch.header.retained_within(offsets) for batch in led.log.batches_between(*offsets)]
    return sum(records for records, _ in parts), sum(size for _, size in parts)


def with_keys(records: pa.Table, keys: Collection[str] | None) -> pa.Table:
    """The records that have one of these keys; with None all of them."""
    if keys is None:
        return records
    kind = records.schema.field("key").type
    return records.filter(
        pc.is_in(records["key"], pa.array([key.encode(errors="surrogateescape") for key in keys], kind))
    )
