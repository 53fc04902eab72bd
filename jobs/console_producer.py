"""Sends each line of standard input as a record. The flags are those of kafka-console-producer.sh.

It starts no Spark. The exit status is 1 if a record was not delivered.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from lakelog.jobs.cli.console import FAILED, OK, run, say
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.jobs.console.key_values import add_producer_properties, add_properties, client_parser, producer_of
from lakelog.jobs.console.line_reader import PROPERTIES, LineReader
from lakelog.replication.clients.delivery_reports import ProducedMessage
from lakelog.replication.errors import InvalidRecordException, LakelogException, RecordTooLargeException


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), console_producer, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = client_parser("console-producer", __doc__)
    add_properties(
        parser, ("--reader-property", "--property"),
        f"how lines are read: {', '.join(PROPERTIES)}; by default a line is a value",
    )  # fmt: skip
    add_producer_properties(parser, "--producer-property")
    parser.add_argument(
        "--acks", "--request-required-acks", metavar="ACKS",
        help="all or -1: wait for all in-sync replicas; 1: wait for the leader; 0: do not wait; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=whole_number(0), metavar="BYTES",
        help="most bytes of records that wait for others; default: 1048576",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=whole_number(0), metavar="MS",
        help="how long a record waits for others, in milliseconds; default: 1000",
    )  # fmt: skip
    parser.add_argument(
        "--max-block-ms", type=whole_number(0, MAX_OFFSET), metavar="MS",
        help="how long a record waits for memory, in milliseconds; default: 60000",
    )  # fmt: skip
    parser.add_argument("--sync", action="store_true", help="wait for each record before the next line is read")
    return parser


_DEFAULTS = {"linger.ms": 1000}


def console_producer(args: argparse.Namespace) -> int:
    """Sends a record for each line of stdin, until it ends. FAILED if a record was not delivered.

    What was read before a wrong line, a signal or Ctrl-C is sent. Raises InvalidRecordException and what
    `Producer.produce` raises; of a record that is too large it says the line.
    """
    reader = LineReader(args.reader_property)
    sizes = {"batch.size": args.batch_size, "linger.ms": args.timeout, "max.block.ms": args.max_block_ms}
    given = {"acks": args.acks, **sizes}
    exit_when_told()
    errors = DeliveryErrors()
    with producer_of(args, args.producer_property, "--producer-property", given, _DEFAULTS) as producer:
        for number, record in enumerate(reader.records(_lines()), 1):
            try:
                producer.produce(args.topic, record.value, record.key, None, errors.report, headers=record.headers)
            except RecordTooLargeException as error:
                raise RecordTooLargeException(f"line {number}: {error}") from None
            producer.flush() if args.sync else producer.poll()
    return errors.status()


class DeliveryErrors:
    """Counts the records that were not delivered, by their errors, and says each error once when it comes."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, error: BaseException, topic: str, records: int = 1) -> None:
        """So many records were not delivered."""
        name = error.name if isinstance(error, LakelogException) else type(error).__name__
        words = f"{name}: {error}"
        if words not in self._counts:
            say(f"lakelog: {topic}: a record was not delivered: {words}")
        self._counts[words] += records

    def report(self, error: BaseException | None, message: ProducedMessage) -> None:
        """The report of a record."""
        if error is not None:
            self.note(error, message.topic())

    def status(self) -> int:
        """The status of the verb. Says how many records were not delivered."""
        failed = self._counts.total()
        if failed:
            say(f"lakelog: {failed} records were not delivered")
        return FAILED if failed else OK


def _lines() -> Iterator[bytes]:
    """The lines of stdin, with a prompt before each if it is a terminal."""
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            print(">", end="", flush=True)
        try:
            line = sys.stdin.buffer.readline()
        except OSError as error:  # it is closed, or its disk fails
            raise InvalidRecordException(f"standard input: {error.strerror}") from None
        if not line:
            return
        yield line
