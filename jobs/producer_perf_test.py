"""Measures how fast records are sent. The flags and the lines are those of kafka-producer-perf-test.sh.

It starts no Spark. MB are 2^20 bytes. The exit status is 1 if a record was not delivered.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pyarrow as pa

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.jobs.console.key_values import KEYS, client_parser, producer_of
from lakelog.jobs.console_producer import DeliveryErrors
from lakelog.jobs.topics import config_pair
from lakelog.replication.clients.delivery_reports import ProducedMessage
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.errors import InvalidRequestException, LakelogException
from lakelog.replication.protocol.rounds.send_round import RecordMetadata

_LETTERS = bytes(65 + n % 26 for n in range(256))
_TIMEOUT_MS = 120_000

_MB = 1024 * 1024
_WINDOW_SECONDS = 5.0
_SAMPLES = 500_000  # latencies that are kept for the percentiles


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), producer_performance, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = client_parser("producer-perf-test", __doc__)
    parser.add_argument("--num-records", type=whole_number(1), required=True, metavar="N", help="records to send")
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=whole_number(1), metavar="BYTES", help="size of random values, in bytes")
    payload.add_argument(
        "--payload-file", metavar="FILE", help="file with values, of which each record gets a random one"
    )
    payload.add_argument("--payload-monotonic", action="store_true", help="the values are 0, 1, 2 and so on")
    parser.add_argument(
        "--payload-delimiter", type=separator, default="\n", metavar="TEXT",
        help=r"text between the values in --payload-file; default: \n, a line feed",
    )  # fmt: skip
    parser.add_argument(
        "--throughput", type=rate, required=True, metavar="N", help="most records a second; -1: as many as possible"
    )
    parser.add_argument(
        "--producer-props", type=config_pair, nargs="+", action="append", default=[], metavar="KEY=VALUE",
        help=f"settings of the producer: {', '.join(KEYS)}",
    )  # fmt: skip
    parser.add_argument(
        "--records-per-send", type=whole_number(1), default=1, metavar="N",
        help="1: produce each record by itself; more: send Arrow tables of so many records; default: 1",
    )  # fmt: skip
    return parser


def producer_performance(args: argparse.Namespace) -> int:
    """Sends records and prints how fast it went. FAILED if a record was not delivered.

    A latency is the time from the call until the report. Raises InvalidRequestException for a file without payloads,
    and what `Producer` raises.
    """
    payloads = _payloads(args)
    exit_when_signalled()
    pairs = [pair for pairs in args.producer_props for pair in pairs]
    with producer_of(args, pairs, "--producer-props", {}, {}) as producer:
        run = PerformanceRun(producer, args.topic, args.num_records, args.throughput)
        if args.records_per_send == 1:
            run.one_by_one(payloads)
        else:
            run.in_tables(payloads, args.records_per_send)
    print(run.stats.total_line())
    return run.errors.status()


class _Sent(NamedTuple):
    """A table whose send is settled. The times are in seconds of the monotonic clock."""

    at: float
    records: int
    bytes: int
    done_at: float
    future: Future[dict[int, RecordMetadata]]


class PerformanceRun:
    """Sends `records` records to a topic, at most `throughput` a second; as fast as possible if that is negative."""

    def __init__(self, producer: Producer, topic: str, records: int, throughput: float) -> None:
        self._producer, self._topic, self._records = producer, topic, records
        self._seconds = 1 / throughput if throughput > 0 else 0.0  # from one record to the next
        self._start = time.monotonic()
        self.stats, self.errors = LatencyStats(records), DeliveryErrors()
        self._done: SimpleQueue[_Sent] = SimpleQueue()
        self._reported = 0

    def one_by_one(self, payloads: Iterator[bytes]) -> None:
        """Produces each record by itself."""
        for number, payload in enumerate(itertools.islice(payloads, self._records)):
            self._let_pass(number)
            report = partial(self._report, time.monotonic())
            self._producer.produce(self._topic, payload, on_delivery=report)
        self._producer.flush()

    def in_tables(self, payloads: Iterator[bytes], size: int) -> None:
        """Sends Arrow tables of `size` records."""
        for first in range(0, self._records, size):
            values = list(itertools.islice(payloads, min(size, self._records - first)))
            table = pa.table({"value": pa.array(values, pa.binary())})
            self._let_pass(first)
            note = partial(self._note, time.monotonic(), len(values), sum(map(len, values)))
            self._producer.send_async(self._topic, table, _TIMEOUT_MS).add_done_callback(note)
            self._report_tables(self._done.qsize())
        self._report_tables(-(-self._records // size) - self._reported)

    def _let_pass(self, number: int) -> None:
        """Waits until it is the turn of a record, and takes the reports that come meanwhile."""
        due = self._start + number * self._seconds
        while self._producer.poll(max(0.0, due - time.monotonic())) or time.monotonic() < due:
            continue

    def _report(self, sent_at: float, error: BaseException | None, message: ProducedMessage) -> None:
        if error is None:
            self.stats.add(sent_at, time.monotonic(), len(message.value() or b""))
        else:
            self.errors.note(error, self._topic)

    def _note(self, at: float, records: int, size: int, future: Future[dict[int, RecordMetadata]]) -> None:
        self._done.put(_Sent(at, records, size, time.monotonic(), future))

    def _report_tables(self, count: int) -> None:
        """Waits for the answers of `count` tables, and counts them."""
        for _ in range(count):
            sent = self._done.get()
            self._reported += 1
            try:
                raise_first_error(sent.future.result())
            except LakelogException as error:
                self.errors.note(error, self._topic, sent.records)
            else:
                self.stats.add(sent.at, sent.done_at, sent.bytes, sent.records)


def rate(text: str) -> float:
    """A type of argparse: a number of records a second, or -1 for no limit."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if found == -1 or 0 < found < math.inf:
        return found
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number above 0, nor -1")


def separator(text: str) -> str:
    r"""A type of argparse: the text between payloads; `\n` is a line feed, as in Kafka."""
    return "\n" if text == r"\n" else text


def _payloads(args: argparse.Namespace) -> Iterator[bytes]:
    chance = random.Random(0)
    if args.payload_file is not None:
        known = _read(args.payload_file, args.payload_delimiter)
        return iter(lambda: chance.choice(known), None)
    if args.payload_monotonic:
        return (b"%d" % number for number in itertools.count())
    return (chance.randbytes(args.record_size).translate(_LETTERS) for _ in itertools.count())


def _read(path: str, delimiter: str) -> Sequence[bytes]:
    """The payloads of a file. A delimiter at its end is not followed by another payload."""
    content, between = Path(path).read_bytes(), delimiter.encode()
    if not content:
        raise InvalidRequestException(f"--payload-file: {path} has no payloads")
    payloads = content.removesuffix(between).split(between)
    print(f"Reading payloads from: {Path(path).absolute()}\nNumber of messages read: {len(payloads)}")
    return payloads


@dataclass
class _Window:
    """Records since a time, in seconds of the monotonic clock; bytes of their values; latencies in ms."""

    start: float
    records: int = 0
    bytes: int = 0
    latency: int = 0
    max_latency: int = 0

    def add(self, latency: int, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        self.latency += latency * records
        self.max_latency = max(self.max_latency, latency)

    def rates(self, now: float) -> tuple[float, float]:
        """Records and MB (2^20 bytes) a second."""
        seconds = max(now - self.start, 0.001)
        return self.records / seconds, self.bytes / seconds / _MB

    @property
    def average(self) -> float:
        return self.latency / max(1, self.records)


class LatencyStats:
    """The statistics of a test of `records` records. It prints a line every 5 seconds."""

    def __init__(self, records: int) -> None:
        now = time.monotonic()
        self._all, self._window = _Window(now), _Window(now)
        self._every = max(1, records // _SAMPLES)
        self._latencies = array("l")

    def add(self, sent_at: float, done_at: float, size: int, records: int = 1) -> None:
        """So many records, of `size` bytes in all, were acknowledged. The times are in seconds of the monotonic
        clock."""
        latency = int((done_at - sent_at) * 1000)
        before = self._all.records // self._every
        self._all.add(latency, records, size)
        self._latencies.extend([latency] * (self._all.records // self._every - before))
        self._window.add(latency, records, size)
        if done_at - self._window.start >= _WINDOW_SECONDS:
            print(self._window_line(done_at), flush=True)
            self._window = _Window(done_at)

    def _window_line(self, now: float) -> str:
        records, mb = self._window.rates(now)
        return (
            f"{self._window.records} records sent, {records:.1f} records/sec ({mb:.2f} MB/sec), "
            f"{self._window.average:.1f} ms avg latency, {self._window.max_latency:.1f} ms max latency."
        )

    def total_line(self) -> str:
        """The line for all records."""
        records, mb = self._all.rates(time.monotonic())
        half, most, nearly_all, all_but_one = self._percentiles()
        return (
            f"{self._all.records} records sent, {records:.6f} records/sec ({mb:.2f} MB/sec), "
            f"{self._all.average:.2f} ms avg latency, {self._all.max_latency:.2f} ms max latency, "
            f"{half} ms 50th, {most} ms 95th, {nearly_all} ms 99th, {all_but_one} ms 99.9th."
        )

    def _percentiles(self) -> list[int]:
        ordered = sorted(self._latencies) or [0]
        return [ordered[int(part * len(ordered))] for part in (0.5, 0.95, 0.99, 0.999)]
