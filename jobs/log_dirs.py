"""Shows the replicas in the roots of brokers, and their sizes. The flags are those of kafka-log-dirs.sh.

A file may hold records of many partitions. Each partition's size is its share of the file, by the bytes of its keys
and values. Offsets and lag of a broker that is dead or stopped are those that it published last: its rows are marked as
stale.
"""

from lakelog.jobs.admin.log_dirs_command import describe
from lakelog.jobs.cli.console import add_all, run
from lakelog.jobs.cli.numbers import whole_numbers
from lakelog.jobs.cli.options import admin_parser
from lakelog.jobs.cli.verb_parser import VerbParser


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), describe, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("log-dirs", __doc__)
    parser.add_argument("--describe", action="store_true", required=True, help="show the replicas; always needed")
    add_all(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="fail if the replicas of a partition have different records",
    )
    parser.add_argument("--broker-list", type=whole_numbers(0), metavar="1,2", help="brokers to look at; default: all")
    parser.add_argument(
        "--topic-list", type=lambda text: text.split(","), metavar="A,B", help="topics to show; default: all"
    )
    return parser
