"""Measures how fast records are sent. The flags and the lines are those of kafka-producer-perf-test.sh.

It starts no Spark. MB are 2^20 bytes. The exit status is 1 if a record was not delivered.
"""

from lakelog.jobs.admin.topic_command import config_pair
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.console.arguments import client_parser
from lakelog.jobs.console.producer_options import KEYS
from lakelog.jobs.console.producer_performance import producer_performance, rate, separator


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
