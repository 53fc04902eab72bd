"""Prints committed records. The flags are those of kafka-console-consumer.sh.

It starts no Spark. Ctrl-C ends it. Then it says on stderr how many records it has printed.
"""

import argparse

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.console.arguments import add_group, client_parser, place
from lakelog.jobs.console.consumer_command import console_consumer
from lakelog.jobs.console.key_values import add_properties
from lakelog.jobs.console.record_formatter import PROPERTIES


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
    parser.add_argument("--max-messages", type=whole_number(1), metavar="N", help="end after so many records")
    parser.add_argument(
        "--timeout-ms", type=whole_number(0), metavar="MS", help="end if no record comes for so many milliseconds"
    )  # fmt: skip
    add_properties(parser, ("--formatter-property", "--property"), f"how records are printed: {', '.join(PROPERTIES)}")
    return parser


def _consume(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.offset is not None and (args.partition is None or args.from_beginning):
        parser.error("--offset needs --partition, and does not go with --from-beginning")
    if args.group and args.partition is not None:
        parser.error("--group does not go with --partition")
    return console_consumer(args)
