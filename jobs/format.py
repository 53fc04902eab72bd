"""Makes the root of a cluster, or the root of a broker of that cluster, and prints the id of the cluster.

A root must be empty, and may not lie in another root. A root that belongs to another cluster or broker is refused, and
so is a second root for a broker that is at work. An unmounted folder is empty, too: so a cluster root is refused where
the folders broker-N beside it belong to a cluster, and on a terminal the command asks before it makes a cluster.
"""

import argparse

from lakelog.jobs.admin.format_command import make_broker, make_cluster
from lakelog.jobs.cli.console import FAILED, OK, run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import add_command_config
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of, root_uri


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _format(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("format", __doc__)
    add_cluster(parser)
    parser.add_argument("--broker-id", type=whole_number(0), metavar="N", help="make the root of this broker")
    parser.add_argument(
        "--root", type=root_uri, metavar="URI", help="root of the broker, such as /lake/broker-1 or s3://bucket/b1"
    )
    parser.add_argument("--dry-run", action="store_true", help="check whether the root can be made, and write nothing")
    parser.add_argument(
        "--new-cluster", action="store_true",
        help="make a new cluster although brokers' roots of another one lie beside it, and without a question",
    )  # fmt: skip
    add_command_config(parser, "settings of the cluster, and credentials of the roots")
    return parser


def _format(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if (args.broker_id is None) != (args.root is None):
        parser.error("--broker-id and --root go together")
    made = make_cluster(args) if args.root is None else make_broker(args)
    if made:
        print(made)
    return OK if made or args.dry_run else FAILED
