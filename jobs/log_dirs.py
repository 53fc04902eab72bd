"""`lakelog log-dirs`: what lies in the roots of brokers, and how much of it. The flags are those of kafka-log-dirs.sh.

A partition's size is its share of the files that it lies in, by the keys and values of its batches there: a file may
hold many partitions. What lies below the log start counts as long as it is there. Offsets and lag of a broker that is
dead or stopped are those that it published last: its rows are marked as stale.
"""

import argparse

from lakelog.jobs.admin.log_dirs_command import describe
from lakelog.jobs.cli.console import add_all, run
from lakelog.jobs.cli.options import add_actions, admin_parser
from lakelog.jobs.cli.settings import broker_id


def main(argv: list[str]) -> int:
    """The verb."""
    return run(_parser(), describe, argv)


def _parser() -> argparse.ArgumentParser:
    parser = admin_parser("log-dirs", __doc__)
    add_actions(parser, ("describe",))
    add_all(parser)
    parser.add_argument(
        "--verify", action="store_true", help="fail if replicas of a partition have different records, by their chains"
    )
    parser.add_argument("--broker-list", type=_brokers, metavar="1,2", help="without it, all that have registered")
    parser.add_argument("--topic-list", type=lambda text: text.split(","), metavar="A,B", help="without it, all topics")
    return parser


def _brokers(text: str) -> list[int]:
    return sorted({broker_id(number) for number in text.split(",")})
