"""Shows the batches of a broker's log, file by file, as kafka-dump-log.sh does. It reads files only, and needs no
running cluster. It names each broken file, and shows the others.
"""

import argparse

from lakelog.jobs.admin.dump_log_command import dump
from lakelog.jobs.admin.log_files import Range
from lakelog.jobs.cli.console import JSON, run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import TEXT, add_command_config, add_output
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of, root_uri


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), dump, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("dump-log", __doc__)
    parser.add_argument(
        "--root", type=root_uri, required=True, metavar="URI",
        help="root of the broker, such as /lake/broker-1 or s3://bucket/b1",
    )  # fmt: skip
    parser.add_argument("--topic", metavar="NAME", help="show only batches of this topic; default: all topics")
    parser.add_argument("--partition", type=whole_number(0), metavar="N", help="show only this partition; default: all")
    parser.add_argument(
        "--offsets", type=_range, default=Range(), metavar="5:10",
        help="show only offsets from the first number to before the second; either may be left out",
    )  # fmt: skip
    parser.add_argument("--print-data-log", action="store_true", help="show the records of each batch too")
    parser.add_argument(
        "--verify", action="store_true",
        help="compare every file and every row of the log with the digests that were committed, and look for gaps "
        "between batches",
    )  # fmt: skip
    add_output(parser, (TEXT, JSON))
    add_command_config(parser, "credentials of the root")
    parser.add_argument("--broker-id", type=whole_number(0), metavar="N", help="read the credentials of this broker")
    return parser


def _range(text: str) -> Range:
    first, colon, end = text.partition(":")
    if not colon or any(part and not (part.isascii() and part.isdigit()) for part in (first, end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 5:10, 5: or :10")
    found = Range(int(first or 0), int(end) if end else None)
    if found.stop is not None and found.start >= found.stop:
        raise argparse.ArgumentTypeError(f"{text!r} shows nothing: the first number must be below the second")
    return found
