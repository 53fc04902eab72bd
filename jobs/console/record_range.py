"""A range of a topic: offsets of each partition, up to the high watermark."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from lakelog.replication.clients.offset_lookup import LATEST, offset_for
from lakelog.replication.clients.partition_reader import OpenPartition, ask_leaders
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    InvalidPartitionsException,
    InvalidRequestException,
    LakelogException,
    UnknownTopicIdException,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import OffsetRange

# Where a range begins or ends in a partition, before that is fitted to the records that it has.
Bound = Callable[[OpenPartition], int]


class RecordRange(NamedTuple):
    """The range of each partition, and the id of the topic that the offsets belong to."""

    topic: str
    topic_id: str
    partitions: Mapping[int, OffsetRange]


def unread_range(view: TopicView, topic: str, partition: int | None, group: str) -> RecordRange:
    """The records of a topic, or of one partition, from the offset that a group has committed to the high watermark;
    in a partition without such an offset all of them. It neither joins the group nor commits.

    Raises InvalidRequestException if the group has committed nothing of the topic, UnknownTopicOrPartitionException,
    InvalidPartitionsException, and what the leaders' tables raise.
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
    unknown = [number for number in wanted if number not in known]
    if unknown:
        raise InvalidPartitionsException(f"topic {topic} has no partition {unknown[0]}, it has 0 to {max(known)}")
    return sorted(set(wanted))


def _resolved(view: TopicView, topic: str, numbers: Iterable[int], start: Bound) -> RecordRange:
    def ask(led: OpenPartition) -> tuple[str, OffsetRange]:
        end = offset_for(led, LATEST)
        assert end is not None, "every partition has a high watermark"
        first, wanted = led.log.log_start_offset, start(led)
        return led.registration.topic_id, OffsetRange(min(max(first, wanted), end.offset), end.offset)

    deadline = time.monotonic() + view.cluster.config.request_timeout_ms / 1000
    answers = ask_leaders(view, topic, list(numbers), ask, deadline)
    found: dict[int, tuple[str, OffsetRange]] = {}
    for number, answer in answers.items():
        if isinstance(answer, LakelogException):
            raise answer
        found[number] = answer
    ids = {topic_id for topic_id, _ in found.values()}
    if len(ids) > 1:
        raise UnknownTopicIdException(f"topic {topic} was made again just now; call the command again")
    return RecordRange(topic, next(iter(ids), ""), {number: each for number, (_, each) in found.items()})
