"""Sends each line of standard input as a record. The flags are those of kafka-console-producer.sh.

It starts no Spark. The exit status is 1 if a record was not delivered.
"""

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.console.arguments import client_parser
from lakelog.jobs.console.key_values import add_properties
from lakelog.jobs.console.line_reader import PROPERTIES
from lakelog.jobs.console.producer_command import console_producer
from lakelog.jobs.console.producer_options import add_producer_properties


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
