"""Shows offsets of partitions, by place or by time. The flags are those of kafka-get-offsets.sh.

A line is topic:partition:offset. A partition that has no such record has no line.
"""

import argparse
import time
from typing import NamedTuple

from lakelog.jobs.cli.console import FAILED, OK, Lines, Report, Row, run
from lakelog.jobs.cli.numbers import whole_numbers
from lakelog.jobs.cli.options import admin_parser
from lakelog.jobs.cli.outcomes import say_refused
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.clients.offset_lookup import LATEST, NAMES, TimestampAndOffset, offset_for
from lakelog.replication.clients.partition_reader import ask_leaders
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.storage.cluster import Cluster


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), get_offsets, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("get-offsets", __doc__)
    parser.add_argument("--topic", metavar="NAME", help="name of the topic; default: all topics")
    parser.add_argument("--partitions", type=whole_numbers(0), metavar="0,1,2", help="partitions to show; default: all")
    parser.add_argument(
        "--time", type=_time, default=LATEST, metavar="TIME",
        help="latest or -1: the high watermark; earliest or -2: the log start; max-timestamp or -3: the record with "
        "the largest timestamp; another number, in milliseconds since 1970: the first record from then on; "
        "default: latest",
    )  # fmt: skip
    return parser


def _time(text: str) -> int:
    given = NAMES.get(text, text)
    try:
        time = int(given)
    except ValueError:
        time = min(NAMES.values()) - 1
    if time < min(NAMES.values()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither milliseconds nor one of {', '.join(NAMES)}, -1, -2, -3")
    return time


class _Answer(NamedTuple):
    """The answer of a partition: an offset or an error, or neither if no record is as late as was asked for."""

    topic: str
    partition: int
    found: TimestampAndOffset | None = None
    error: LakelogException | None = None


def get_offsets(args: argparse.Namespace) -> int:
    """A line for each partition that has the offset. FAILED if any is in error; the others are shown.

    New leaders that do not know yet how much is committed are waited for, until `request.timeout.ms`.
    Raises UnknownTopicOrPartitionException if there is no such topic.
    """
    view = TopicView(Cluster.open(args.cluster, settings(args.command_config)))
    deadline = time.monotonic() + view.cluster.config.request_timeout_ms / 1000
    known = sorted(topic.topic for topic in view.cluster.topics.topics.values() if not topic.deleting)
    topics = known if args.topic is None else [args.topic]
    answers = [answer for topic in topics for answer in _answers(view, topic, args, deadline)]
    lines = [f"{a.topic}:{a.partition}:{a.found.offset}" for a in answers if a.found]
    Report([_row(answer) for answer in answers], text=[Lines(lines)]).show(args.output)
    return _say_errors(answers)


def _answers(view: TopicView, topic: str, args: argparse.Namespace, deadline: float) -> list[_Answer]:
    """Of the topic's partitions, or those that were asked for; of a topic that was not named, those that it has."""
    there = list(view.partitions(topic))
    wanted = sorted({*args.partitions}) if args.partitions else there
    chosen = wanted if args.topic else [number for number in wanted if number in there]
    answers = ask_leaders(view, topic, chosen, lambda led: offset_for(led, args.time), deadline)
    return [
        _Answer(topic, n, error=answer) if isinstance(answer, LakelogException) else _Answer(topic, n, answer)
        for n, answer in answers.items()
    ]


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
