"""What `lakelog get-offsets` does and prints. Kafka: `GetOffsetShell`."""

import argparse
from typing import NamedTuple

from jobs.admin_options import TEXT
from jobs.console import FAILED, OK, Row, show
from jobs.led_partition import led_partition
from jobs.offset_lookup import TimestampAndOffset, offset_for
from jobs.outcomes import say_refused
from jobs.settings import settings
from replication.clients.topic_view import Leadership, TopicView
from replication.errors import LakelogException
from replication.storage.admin_table import Outcome
from replication.storage.cluster import Cluster


class _Answer(NamedTuple):
    """What was found in a partition; neither offset nor error where no record is as late as was asked for."""

    topic: str
    partition: int
    found: TimestampAndOffset | None = None
    error: LakelogException | None = None


def get_offsets(args: argparse.Namespace) -> int:
    """A line for each partition that has the offset. FAILED if any is in error; the others are told all the same.

    Raises UnknownTopicOrPartitionException if there is no such topic.
    """
    view = TopicView(Cluster.open(args.cluster, settings(args.command_config)))
    known = sorted(topic.topic for topic in view.cluster.topics.topics.values() if not topic.deleting)
    topics = known if args.topic is None else [args.topic]
    answers = [answer for topic in topics for answer in _answers(view, topic, args)]
    if args.output == TEXT:
        print("".join(f"{a.topic}:{a.partition}:{a.found.offset}\n" for a in answers if a.found), end="", flush=True)
    else:
        show([_row(answer) for answer in answers], args.output)
    return _say_errors(answers)


def _answers(view: TopicView, topic: str, args: argparse.Namespace) -> list[_Answer]:
    """Of the topic's partitions, or those that were asked for; of a topic that was not named, those that it has."""
    wanted = args.partitions or list(view.partitions(topic))
    found = view.leaderships(topic, wanted)
    named = wanted if args.topic else sorted(found)
    return [_answer(view, topic, number, found.get(number), args.time) for number in named]


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
