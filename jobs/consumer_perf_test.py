"""Measures how fast records are consumed. The flags and the columns are those of kafka-consumer-perf-test.sh.

It starts no Spark. MB are 2^20 bytes of keys and values. rebalance.time.ms is the time until the partitions and their
offsets are known.
"""

from __future__ import annotations

import argparse
import datetime as dt
import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.jobs.cli.console import OK, run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.jobs.console.key_values import add_group, client_parser
from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST
from lakelog.replication.storage.log.segment import record_bytes

_MB = 1024 * 1024
_WAIT_MS = 100
_COLUMNS = (
    "data.consumed.in.MB", "MB.sec", "data.consumed.in.nMsg", "nMsg.sec", "rebalance.time.ms", "fetch.time.ms",
    "fetch.MB.sec", "fetch.nMsg.sec",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), consumer_performance, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = client_parser("consumer-perf-test", __doc__)
    parser.add_argument("--messages", type=whole_number(1), required=True, metavar="N", help="records to consume")
    add_group(parser)
    parser.add_argument("--from-latest", action="store_true", help="begin after the latest record, not at the earliest")
    parser.add_argument(
        "--timeout", type=whole_number(0), default=10_000, metavar="MS",
        help="end if no record comes for so many milliseconds; default: 10000",
    )  # fmt: skip
    parser.add_argument(
        "--fetch-size", type=whole_number(1), default=52_428_800, metavar="BYTES",
        help="most bytes of a fetch; default: 52428800",
    )  # fmt: skip
    parser.add_argument("--show-detailed-stats", action="store_true", help="print a line for each --reporting-interval")
    parser.add_argument(
        "--reporting-interval", type=whole_number(1), default=5_000, metavar="MS",
        help="time between two lines, in milliseconds; default: 5000",
    )  # fmt: skip
    parser.add_argument("--hide-header", action="store_true", help="print no names of columns")
    return parser


def consumer_performance(args: argparse.Namespace) -> int:
    """Consumes records, and prints how fast it went; with --show-detailed-stats a line each interval."""
    exit_when_signalled()
    if not args.hide_header:
        times = ("time", "threadId") if args.show_detailed_stats else ("start.time", "end.time")
        print(", ".join((*times, *_COLUMNS)), flush=True)
    start = Consumed(time.time())
    begin = LATEST if args.from_latest else EARLIEST
    reader = ConsoleReader(args.cluster, settings(args.command_config), args.topic, begin, args.group)
    run = ConsumerRun(args, reader, start, round((time.time() - start.at) * 1000))
    end = run.consume()
    reader.commit()
    if end.records < args.messages:
        print(
            "WARNING: Exiting before consuming the expected number of messages: "
            f"timeout ({args.timeout} ms) exceeded. You can use the --timeout option to increase the timeout."
        )
    if not args.show_detailed_stats:
        print(f"{_time(start.at)}, {_time(end.at)}, {_figures(start, end, run.first_ms)}")
    return OK


@dataclass(frozen=True)
class Consumed:
    """The number of records that were consumed until `at`, in seconds since 1970, and the bytes of their keys and
    values."""

    at: float
    records: int = 0
    bytes: int = 0

    def then(self, records: pa.Table) -> Consumed:
        """The sum after more records, now."""
        size = pc.sum(record_bytes(records)).as_py() or 0
        return Consumed(time.time(), self.records + records.num_rows, self.bytes + size)


class ConsumerRun:
    """Reads until there are `--messages` records, or none has come for `--timeout`. `first_ms`: the time in ms until
    the consumer knew its partitions and offsets."""

    def __init__(self, args: argparse.Namespace, reader: ConsoleReader, start: Consumed, first_ms: int) -> None:
        self._args, self._reader = args, reader
        self._reported, self._reported_ms = start, first_ms
        self.first_ms = first_ms

    def consume(self) -> Consumed:
        """Consumes, and returns the total. Prints a line after each interval, if the arguments ask for it."""
        now, args = self._reported, self._args
        came_at = time.monotonic()
        while now.records < args.messages and (time.monotonic() - came_at) * 1000 <= args.timeout:
            for records in self._reader.read(_WAIT_MS, args.messages - now.records, args.fetch_size):
                now, came_at = now.then(records), time.monotonic()
                self._report(now)
        return Consumed(time.time(), now.records, now.bytes)

    def _report(self, now: Consumed) -> None:
        if (now.at - self._reported.at) * 1000 < self._args.reporting_interval:
            return
        if self._args.show_detailed_stats:
            print(f"{_time(now.at)}, 0, {_figures(self._reported, now, self._reported_ms)}", flush=True)
        self._reported, self._reported_ms = now, 0


def _figures(before: Consumed, now: Consumed, first_ms: int) -> str:
    """Totals until now, and rates since before. The last rates leave out the time until the offsets were known."""
    milliseconds = max(1, round((now.at - before.at) * 1000))
    fetch_ms = milliseconds - first_ms
    mb, records = (now.bytes - before.bytes) / _MB, now.records - before.records
    rates = [1000 * amount / ms if ms > 0 else 0.0 for ms in (milliseconds, fetch_ms) for amount in (mb, records)]
    totals = f"{now.bytes / _MB:.4f}, {rates[0]:.4f}, {now.records}, {rates[1]:.4f}"
    return f"{totals}, {first_ms}, {fetch_ms}, {rates[2]:.4f}, {rates[3]:.4f}"


def _time(seconds: float) -> str:
    time = dt.datetime.fromtimestamp(seconds)
    return f"{time:%Y-%m-%d %H:%M:%S}:{time.microsecond // 1000:03}"
