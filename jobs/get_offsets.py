"""Shows offsets of partitions, by place or by time. The flags are those of kafka-get-offsets.sh.

A line is topic:partition:offset. A partition that has no such record has no line.
"""

import argparse

from lakelog.jobs.admin.get_offsets_command import get_offsets
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_numbers
from lakelog.jobs.cli.options import admin_parser
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.clients.offset_lookup import LATEST, NAMES


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), get_offsets, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("get-offsets", __doc__)
    parser.add_argument("--topic", metavar="NAME", help="name of the topic; default: all topics")
    parser.add_argument("--partitions", type=whole_numbers(0), metavar="0,1,2", help="partitions to show; default: all")
    parser.add_argument(
        "--time", type=_time, default=LATEST, metavar="TIME",
        help="latest or -1: the high watermark; earliest or -2: the log start; max-timestamp or -3: the record with "
        "the largest timestamp; another number, in milliseconds since 1970: the first record from then on; "
        "default: latest",
    )  # fmt: skip
    return parser


def _time(text: str) -> int:
    given = NAMES.get(text, text)
    try:
        time = int(given)
    except ValueError:
        time = min(NAMES.values()) - 1
    if time < min(NAMES.values()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither milliseconds nor one of {', '.join(NAMES)}, -1, -2, -3")
    return time
