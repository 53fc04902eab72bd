"""Measures how fast records are consumed. The flags and the columns are those of kafka-consumer-perf-test.sh.

It starts no Spark. MB are 2^20 bytes of keys and values. rebalance.time.ms is the time until the partitions and their
offsets are known.
"""

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.console.arguments import add_group, client_parser
from lakelog.jobs.console.consumer_performance import consumer_performance


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
