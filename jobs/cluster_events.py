"""Shows what has happened in a cluster: brokers lost or stopped, leaders elected, ISRs shrunk and expanded, partitions
offline, topics created and deleted, partitions reassigned, controllers elected, and who has asked for it.

It reads the history of metadata, which reaches back 7 days; no process has to run. So it shows what moves a partition:
a broker that comes back shows when it joins an ISR, and a broker without replicas never does. -o json prints a list,
and with --follow an object a line.
"""

import argparse
import datetime as dt
import json
import time
from collections.abc import Iterable, Sequence
from itertools import groupby

from lakelog.jobs.cli.console import JSON, OK, TEXT, Lines, Report, Row, run, say
from lakelog.jobs.cli.options import admin_parser
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.times import local_time, since
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import let_pass, until_signalled
from lakelog.replication.errors import KafkaStorageException, UnknownTopicOrPartitionException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.readings.metadata_history import ClusterEvent, ClusterEvents

_POLL_SECONDS = 1.0
_DEFAULT_SECONDS = 24 * 3600.0
_SHOWN = 3  # partitions of a line
_WIDTH = len("UncleanLeaderElected")


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), events, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("events", __doc__, (TEXT, JSON))
    parser.add_argument("--topic", metavar="NAME", help="show events of this topic only, each partition in a line")
    parser.add_argument(
        "--since", type=since, metavar="TIME",
        help="2025-01-31T12:00:00 in UTC, or a duration such as PT1H30M or P7D until now; default: P1D",
    )  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="go on with events as they happen, until Ctrl-C")
    return parser


def events(args: argparse.Namespace) -> int:
    """Prints the events."""
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    begin = time.time() - _DEFAULT_SECONDS if args.since is None else args.since
    reading = ClusterEvents(cluster.root, begin)
    found = _of_topic(reading.read_on(), args.topic)
    if args.topic is not None and not found and args.topic not in cluster.topics.topics:
        raise UnknownTopicOrPartitionException(f"{args.topic}: there is no such topic, and no event of one")
    if not found and args.output == TEXT:
        say(f"lakelog: no event since {local_time(begin)}")
    if not args.follow:
        Report([_row(event) for event in found], text=[Lines(_lines(found, args.topic))]).show(args.output)
        return OK
    said = ""
    with until_signalled() as is_stopped:
        _show(found, args)
        while not is_stopped():
            let_pass(_POLL_SECONDS)
            try:
                if reading.history.is_behind():
                    for _, of_commit in groupby(reading.read_on(), lambda event: event.version):
                        _show(_of_topic(of_commit, args.topic), args)
                said = ""
            except KafkaStorageException as error:  # the cluster may come back
                if str(error) != said:
                    said = str(error)
                    say(f"lakelog: {said}")
    return OK


def _of_topic(found: Iterable[ClusterEvent], topic: str | None) -> list[ClusterEvent]:
    return [event for event in found if topic is None or event.topic == topic]


def _show(found: Sequence[ClusterEvent], args: argparse.Namespace) -> None:
    rows = (json.dumps(_row(event)) for event in found)
    Lines(rows if args.output == JSON else _lines(found, args.topic)).show()


def _row(event: ClusterEvent) -> Row:
    return {**event._asdict(), "at": dt.datetime.fromtimestamp(event.at, dt.UTC).isoformat()}


def _lines(found: Iterable[ClusterEvent], topic: str | None) -> Iterable[str]:
    """Equal events of a commit share a line, unless one topic is asked for."""
    for group in alike(found) if topic is None else ([event] for event in found):
        first = group[0]
        where = f"{first_partitions(group)}: " if first.topic is not None else ""
        cause = ", ".join(word for word in (first.who, first.why) if word)
        yield f"{local_time(first.at)}  {first.event:<{_WIDTH}}  {where}{first.detail}  ({cause})"


def first_partitions(group: Sequence[ClusterEvent]) -> str:
    """The names of the first partitions of events, and how many more there are."""
    partitions = [f"{event.topic}-{event.partition}" for event in group]
    more = f" and {len(group) - _SHOWN:,} more" if len(group) > _SHOWN else ""
    return f"{', '.join(partitions[:_SHOWN])}{more}"


def alike(found: Iterable[ClusterEvent]) -> list[list[ClusterEvent]]:
    """Events of one commit that tell the same of several partitions, together."""

    def key(event: ClusterEvent) -> tuple[int, bool, str, str]:
        return event.version, event.topic is not None, event.event, event.detail

    return [list(group) for _, group in groupby(sorted(found, key=key), key)]
