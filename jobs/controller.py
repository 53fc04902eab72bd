"""Runs a controller, which elects leaders in place of brokers that die. Any number may run; one is active, and the
others stand by.

With --describe, --requests or --cancel-request it does only that, and runs no controller.
"""

import argparse
import sys

from lakelog.jobs.admin.controller_command import cancel_request, describe, run_controller, show_requests
from lakelog.jobs.cli.console import add_all, run
from lakelog.jobs.cli.options import FORMS, add_command_config, add_log_level
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _controller(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("controller", __doc__)
    add_cluster(parser)
    add_command_config(parser, "settings of the controller, and credentials of the roots")
    add_log_level(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--describe", action="store_true", help="show the active controller")
    instead.add_argument("--requests", action="store_true", help="show the requests of commands, and their outcomes")
    instead.add_argument("--cancel-request", metavar="ID", help="cancel a request that no controller has decided")
    add_all(parser)
    parser.add_argument("-o", "--output", choices=FORMS, help="for --describe and --requests; default: table")
    return parser


def _controller(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    for name, given in (("-o", args.output), ("--all", args.all)):
        if given and not (args.describe or args.requests):
            return parser.error(f"{name} goes with --describe, --requests only")
    if args.describe:
        return describe(args)
    if args.requests:
        return show_requests(args)
    if args.cancel_request is not None:
        return cancel_request(args)
    return run_controller(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
