"""Runs one broker in a process of its own. On SIGTERM or SIGINT the broker hands its partitions to other leaders, then
stops. It also stops if a newer process runs the same broker.
"""

import argparse
import sys

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import add_command_config, add_log_level
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _run, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("broker", __doc__)
    add_cluster(parser)
    parser.add_argument("--root", required=True, metavar="URI", help="root of this broker; it is made if it is empty")
    parser.add_argument("--broker-id", type=whole_number(0), metavar="N", help="id of this broker; default: broker.id")
    add_command_config(parser, "settings of this broker, and credentials of the roots")
    parser.add_argument("--rack", metavar="NAME", help="rack, zone or region of this broker; default: broker.rack")
    parser.add_argument("--take-over", action="store_true", help="start even if another process runs this broker")
    add_log_level(parser)
    return parser


def _run(args: argparse.Namespace) -> int:
    from lakelog.jobs.launch.broker_run import run_broker  # the arguments need no Spark

    return run_broker(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
