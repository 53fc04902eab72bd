"""`lakelog controller`: elects leaders in place of brokers that die; any number may run, one is active. [CE-01]

With --describe or --requests it shows who is active, or what was asked of it and what has become of that. With
--cancel-request it cancels a request that waits. It runs no controller then.
"""

import argparse
import sys

from lakelog.jobs.admin.controller_command import cancel_request, describe, run_controller, show_requests
from lakelog.jobs.cli.console import parser_of, run
from lakelog.jobs.cli.options import FORMS
from lakelog.jobs.cli.settings import settings
from lakelog.replication.clients.admin import AdminClient


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _controller(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("controller", __doc__)
    parser.add_argument("--cluster", required=True, metavar="URI", help="root of the cluster")
    parser.add_argument("--config", metavar="FILE", help="server.properties")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--describe", action="store_true", help="show who is active, run nothing")
    instead.add_argument("--requests", action="store_true", help="show admin requests and their outcomes, run nothing")
    instead.add_argument("--cancel-request", metavar="ID", help="cancel a request of --requests that is undecided")
    parser.add_argument("-o", "--output", choices=FORMS, help="of what is shown")
    return parser


def _controller(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.output and not (args.describe or args.requests):
        return parser.error("-o goes with --describe, --requests only")
    if args.describe:
        return describe(AdminClient(args.cluster, settings(args.config)), args.output)
    if args.requests:
        return show_requests(AdminClient(args.cluster, settings(args.config)), args.output)
    if args.cancel_request is not None:
        return cancel_request(args)
    return run_controller(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
