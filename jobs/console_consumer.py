"""Prints committed records. The flags are those of kafka-console-consumer.sh.

It starts no Spark. Ctrl-C ends it. Then it says on stderr how many records it has printed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable

from lakelog.jobs.cli.console import INTERRUPTED, OK, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import until_signalled
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.jobs.console.key_values import add_group, add_properties, client_parser, place
from lakelog.jobs.console.record_formatter import (
    DEFAULT,
    JSON_PROPERTIES,
    PROPERTIES,
    RecordFormatter,
    formatter_name,
    formatter_of,
)
from lakelog.jobs.console.record_range import unread_range
from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.storage.cluster import Cluster

_WAIT_MS = 500
_MAX_BYTES = 52_428_800
_COMMIT_SECONDS = 5.0  # auto.commit.interval.ms


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _consume(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = client_parser("console-consumer", __doc__)
    parser.add_argument(
        "--from-beginning", action="store_true", help="begin at the earliest record, not after the latest"
    )
    parser.add_argument("--partition", type=whole_number(0), metavar="N", help="print one partition only")
    parser.add_argument(
        "--offset", type=place, metavar="OFFSET",
        help="where to begin in --partition: earliest, latest, or an offset; default: latest",
    )  # fmt: skip
    add_group(parser)
    parser.add_argument(
        "--unread-by", metavar="GROUP",
        help="print what this group has not consumed, from its committed offsets to the high watermark, and end; it "
        "does not join the group, and commits nothing",
    )  # fmt: skip
    parser.add_argument("--max-messages", type=whole_number(1), metavar="N", help="end after so many records")
    parser.add_argument(
        "--timeout-ms", type=whole_number(0), metavar="MS", help="end if no record comes for so many milliseconds"
    )  # fmt: skip
    parser.add_argument(
        "--formatter", type=formatter_name, default=DEFAULT, metavar="NAME",
        help="default: a line for each record; json: an object for each; logging: as default, and each record on "
        "stderr, too; noop: print no record, only count them",
    )  # fmt: skip
    add_properties(
        parser, ("--formatter-property", "--property"),
        f"how records are printed: {', '.join(PROPERTIES)}; with --formatter json: {', '.join(JSON_PROPERTIES)}, which "
        "is text or base64",
    )  # fmt: skip
    return parser


def _consume(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.offset is not None and (args.partition is None or args.from_beginning):
        parser.error("--offset needs --partition, and does not go with --from-beginning")
    if args.group and args.partition is not None:
        parser.error("--group does not go with --partition")
    if args.unread_by is not None and (args.group or args.from_beginning or args.offset is not None):
        parser.error("--unread-by does not go with --group, --from-beginning or --offset")
    return console_consumer(args)


def console_consumer(args: argparse.Namespace) -> int:
    """Prints records until a signal comes, `--max-messages` were printed, none comes for `--timeout-ms`, or those that
    `--unread-by` chooses are printed. Then it prints the count to stderr. INTERRUPTED after a signal."""
    formatter = formatter_of(args.formatter, args.formatter_property)
    begin = EARLIEST if args.from_beginning else LATEST
    offset = args.offset
    if offset in (EARLIEST, LATEST):
        begin, offset = offset, None
    config, within = settings(args.command_config), None
    if args.unread_by is not None:
        view = TopicView(Cluster.open(args.cluster, config, reads_go_on=True))
        begin, within = EARLIEST, unread_range(view, args.topic, args.partition, args.unread_by)
    reader = ConsoleReader(args.cluster, config, args.topic, begin, args.group, args.partition, offset, within)
    with until_signalled() as is_told:
        ConsoleOutput(reader, formatter).run(args.max_messages, args.timeout_ms, is_told)
    return INTERRUPTED if is_told() else OK


class ConsoleOutput:
    """Writes records to stdout. A group commits the offsets of what was written every 5 seconds, and at the end."""

    def __init__(self, reader: ConsoleReader, formatter: RecordFormatter) -> None:
        self._reader = reader
        self._formatter = formatter
        self._count = 0

    def run(self, most: int | None, timeout_ms: int | None, is_told: Callable[[], bool]) -> None:
        """Writes at most `most` records. Raises what the reader raises, and BrokenPipeError."""
        seconds = math.inf if timeout_ms is None else timeout_ms / 1000
        came_at = committed_at = time.monotonic()
        try:
            while (
                not (self._reader.is_done or is_told()) and self._count != most and time.monotonic() - came_at < seconds
            ):
                if self._write(most, seconds - (time.monotonic() - came_at)):
                    came_at = time.monotonic()
                if time.monotonic() - committed_at >= _COMMIT_SECONDS:
                    self._reader.commit()
                    committed_at = time.monotonic()
        finally:
            say(f"Processed a total of {self._count} messages")
            self._reader.commit()

    def _write(self, most: int | None, seconds: float) -> bool:
        """Fetches once, and writes what came. Returns whether something came."""
        before = self._count
        left = sys.maxsize if most is None else most - self._count
        wait_ms = max(0, min(_WAIT_MS, math.ceil(1000 * min(seconds, 1.0))))
        for records in self._reader.read(wait_ms, left, _MAX_BYTES):
            sys.stdout.buffer.write(self._formatter.lines(records))
            sys.stdout.buffer.flush()
            self._count += records.num_rows
        return self._count > before
