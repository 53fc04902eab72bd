"""Shows the replicas in the roots of brokers, and their sizes. The flags are those of kafka-log-dirs.sh.

A file may hold records of many partitions. Each partition's size is its share of the file, by the bytes of its keys
and values. Offsets and lag of a broker that is dead or stopped are those that it published last: its rows are marked as
stale.
"""

from lakelog.jobs.admin.log_dirs_command import log_dirs
from lakelog.jobs.cli.console import add_all, run
from lakelog.jobs.cli.numbers import whole_numbers
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_parser
from lakelog.jobs.cli.verb_parser import VerbParser


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), log_dirs, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("log-dirs", __doc__)
    actions = {
        "describe": "show the replicas",
        "delete-stray": "delete the stray replicas of --broker-list, with all their records; shows them, and needs "
        "--execute to delete them",
        "accept-cluster-root": "let --broker-list believe a cluster root that is older than what they have applied, or "
        "another one; shows what they have noted, and needs --execute to delete these notes",
    }
    add_actions(parser, actions)
    add_all(parser)
    add_dry_run(parser)
    parser.add_argument("--execute", action="store_true", help="delete what is shown")
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
