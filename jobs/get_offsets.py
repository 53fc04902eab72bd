"""`lakelog get-offsets`: the offsets of partitions, by place or by time. The flags are those of kafka-get-offsets.sh.

A line is topic:partition:offset. A partition that has no such record has no line.
"""

import argparse

from lakelog.jobs.admin.get_offsets_command import get_offsets
from lakelog.jobs.admin.offset_lookup import LATEST, NAMES
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.options import admin_parser


def main(argv: list[str]) -> int:
    """The verb."""
    return run(_parser(), get_offsets, argv)


def _parser() -> argparse.ArgumentParser:
    parser = admin_parser("get-offsets", __doc__)
    parser.add_argument("--topic", metavar="NAME", help="without it, all topics")
    parser.add_argument("--partitions", type=_numbers, metavar="0,1,2", help="without it, all partitions")
    parser.add_argument(
        "--time", type=_time, default=LATEST, metavar="TIME",
        help="-1 or latest: the high watermark, the default; -2 or earliest: the log start; -3 or max-timestamp: the "
        "committed record with the largest timestamp; else milliseconds since 1970: the first committed record that is "
        "as late as that",
    )  # fmt: skip
    return parser


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 0,1,2")
    return sorted(set(map(int, numbers)))


def _time(text: str) -> int:
    given = NAMES.get(text, text)
    try:
        time = int(given)
    except ValueError:
        time = min(NAMES.values()) - 1
    if time < min(NAMES.values()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither milliseconds nor one of {', '.join(NAMES)}, -1, -2, -3")
    return time
