"""What `lakelog producer-perf-test` does and prints. Kafka: `ProducerPerformance`."""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pyarrow as pa

from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.jobs.console.latency_stats import LatencyStats
from lakelog.jobs.console.producer_command import DeliveryErrors
from lakelog.jobs.console.producer_options import producer_of
from lakelog.replication.clients.delivery_reports import ProducedMessage
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.errors import InvalidRequestException, LakelogException
from lakelog.replication.protocol.rounds.send_round import RecordMetadata

_LETTERS = bytes(65 + n % 26 for n in range(256))
_TIMEOUT_MS = 120_000


def producer_performance(args: argparse.Namespace) -> int:
    """Sends records and prints how fast it went. FAILED if a record was not delivered.

    A latency is the time from the call until the report. Raises InvalidRequestException for a file without payloads,
    and what `Producer` raises.
    """
    payloads = _payloads(args)
    exit_when_told()
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
        """Waits for the answers of so many tables, and counts them."""
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
