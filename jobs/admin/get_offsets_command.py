"""What `lakelog get-offsets` does and prints. Kafka: `GetOffsetShell`."""

import argparse
import time
from contextlib import suppress
from typing import NamedTuple

from lakelog.jobs.cli.console import FAILED, OK, Row, show
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.outcomes import say_refused
from lakelog.jobs.cli.settings import settings
from lakelog.replication.clients.delayed_operation import until_available
from lakelog.replication.clients.led_partition import led_partition
from lakelog.replication.clients.offset_lookup import TimestampAndOffset, offset_for
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import LakelogException, OffsetNotAvailableException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.partition_leader import Leadership
from lakelog.replication.storage.cluster import Cluster


class _Answer(NamedTuple):
    """What was found in a partition; neither offset nor error where no record is as late as was asked for."""

    topic: str
    partition: int
    found: TimestampAndOffset | None = None
    error: LakelogException | None = None


def get_offsets(args: argparse.Namespace) -> int:
    """A line for each partition that has the offset. FAILED if any is in error; the others are told all the same.

    New leaders that do not know yet how much is committed are waited for, until `request.timeout.ms`.
    Raises UnknownTopicOrPartitionException if there is no such topic.
    """
    view = TopicView(Cluster.open(args.cluster, settings(args.command_config)))
    deadline = time.monotonic() + view.cluster.config.request_timeout_ms / 1000
    known = sorted(topic.topic for topic in view.cluster.topics.topics.values() if not topic.deleting)
    topics = known if args.topic is None else [args.topic]
    answers = [answer for topic in topics for answer in _answers(view, topic, args, deadline)]
    if args.output == TEXT:
        print("".join(f"{a.topic}:{a.partition}:{a.found.offset}\n" for a in answers if a.found), end="", flush=True)
    else:
        show([_row(answer) for answer in answers], args.output)
    return _say_errors(answers)


def _answers(view: TopicView, topic: str, args: argparse.Namespace, deadline: float) -> list[_Answer]:
    """Of the topic's partitions, or those that were asked for; of a topic that was not named, those that it has."""
    wanted = sorted({*args.partitions}) if args.partitions else list(view.partitions(topic))
    answers: dict[int, _Answer] = {}

    def look() -> None:
        found = view.leaderships(topic, wanted)
        for number in wanted if args.topic else sorted(found):
            if number not in answers or isinstance(answers[number].error, OffsetNotAvailableException):
                answers[number] = _answer(view, topic, number, found.get(number), args.time)
        for answer in answers.values():
            if isinstance(answer.error, OffsetNotAvailableException):
                raise answer.error

    with suppress(OffsetNotAvailableException):  # the partition's answer says so
        until_available(look, deadline, view.cluster.config.lakelog_poll_interval_ms)
    return list(answers.values())


def _answer(view: TopicView, topic: str, number: int, found: Leadership | None, time: int) -> _Answer:
    try:
        return _Answer(topic, number, offset_for(led_partition(view, found, f"{topic}-{number}"), time))
    except LakelogException as error:
        return _Answer(topic, number, error=error)


def _say_errors(answers: list[_Answer]) -> int:
    failed = [answer for answer in answers if answer.error]
    for topic, partition, _, error in failed:
        say_refused(f"{topic}-{partition}", Outcome(error.name if error else None, str(error)))
    return FAILED if failed else OK


def _row(answer: _Answer) -> Row:
    offset, timestamp = answer.found or (None, None)
    return {
        "topic": answer.topic,
        "partition": answer.partition,
        "offset": offset,
        "timestamp": timestamp,
        "error": answer.error.name if answer.error else None,
    }
