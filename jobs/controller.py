"""`lakelog controller`: elects leaders in place of brokers that die; any number may run, one is active. [CE-01]

With --describe or --requests it only shows: who is active, or what was asked of it and what has become of that.
"""

import argparse
import os
import socket
import sys
import uuid

from jobs.admin_options import FORMS
from jobs.console import OK, TABLE, log_to_stderr, parser_of, run, show
from jobs.controller_view import lease_row, request_rows
from jobs.settings import settings
from jobs.waiting import stop_signals, wait_until
from replication.clients.admin import AdminClient
from replication.controller.controller import Controller
from replication.storage.cluster import Cluster


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _controller(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("controller", __doc__)
    parser.add_argument("--cluster", required=True, metavar="URI", help="root of the cluster")
    parser.add_argument("--config", metavar="FILE", help="server.properties")
    parser.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO")
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--describe", action="store_true", help="show who is active, run nothing")
    view.add_argument("--requests", action="store_true", help="show admin requests and their outcomes, run nothing")
    parser.add_argument("-o", "--output", choices=FORMS, help="of what is shown")
    return parser


def _controller(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if not (args.describe or args.requests):
        return parser.error("-o goes with --describe, --requests only") if args.output else _run(args)
    admin = AdminClient(args.cluster, settings(args.config))
    show([lease_row(admin)] if args.describe else request_rows(admin), args.output or TABLE)
    return OK


def _run(args: argparse.Namespace) -> int:
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    log_to_stderr(f"controller {name}", args.log_level)
    controller = Controller(Cluster.open(args.cluster, settings(args.config)), name)
    told = stop_signals()
    controller.start()
    wait_until(told)
    controller.stop()
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
