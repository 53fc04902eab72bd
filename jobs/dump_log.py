"""`lakelog dump-log`: the batches of a broker's log, file by file, as kafka-dump-log.sh shows them.

Only the files are read, no cluster is needed. --verify reads every row, compares rows and their digests with headers,
and looks for gaps and broken links between batches; a broken file is named, and the others are shown all the same.
"""

import argparse

from lakelog.jobs.admin.dump_log_command import dump
from lakelog.jobs.admin.log_files import Range
from lakelog.jobs.cli.console import JSON, parser_of, run
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.settings import broker_id


def main(argv: list[str]) -> int:
    """The verb."""
    return run(_parser(), dump, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("dump-log", __doc__)
    parser.add_argument("--root", required=True, metavar="URI", help="root of the broker")
    parser.add_argument("--topic", metavar="NAME", help="only batches of this topic")
    parser.add_argument("--partition", type=int, metavar="N", help="only batches of partitions of this number")
    parser.add_argument(
        "--offsets", type=_range, default=Range(), metavar="5:10",
        help="only what lies from the first offset to before the second; either may be left out",
    )  # fmt: skip
    parser.add_argument("--print-data-log", action="store_true", help="records too")
    parser.add_argument("--verify", action="store_true", help="look for files that are broken, whatever is shown")
    parser.add_argument("-o", "--output", choices=(TEXT, JSON), default=TEXT, help="text is as Kafka has it")
    parser.add_argument("--command-config", metavar="FILE", help="properties file with the credentials of the root")
    parser.add_argument("--broker-id", type=broker_id, metavar="N", help="whose credentials these are")
    return parser


def _range(text: str) -> Range:
    first, colon, end = text.partition(":")
    if not colon or any(part and not (part.isascii() and part.isdigit()) for part in (first, end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 5:10, 5: or :10")
    return Range(int(first or 0), int(end) if end else None)
