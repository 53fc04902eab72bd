"""Runs a controller, which elects leaders in place of brokers that die. Any number may run; one is active, and the
others stand by.

With --describe, --requests or --cancel-request it does only that, and runs no controller.
"""

import argparse
import os
import socket
import sys
import time
import uuid

from lakelog.jobs.admin.cluster_status import lease_row, request_rows
from lakelog.jobs.admin.heartbeats import observe_controller
from lakelog.jobs.cli.console import OK, TABLE, Report, add_all, log_to_stderr, run, say
from lakelog.jobs.cli.options import FORMS, add_command_config, add_log_format, add_log_level, admin_client_of
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.jobs.cli.waiting import stop_signals, wait_until
from lakelog.jobs.metrics.metrics_port import add_metrics_port, check_metrics_port, serving_metrics
from lakelog.jobs.metrics.process_metrics import ServerFigures
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.conditional_put import check_conditional_put

_LEASE_COLUMNS = ("controller", "controller_epoch", "state", "lease_age_s")
_REQUEST_COLUMNS = ("request", "kind", "state", "of", "error")
_SHORT = 8  # characters of a request's id, which are shown, and name it well enough


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
    add_log_format(parser)
    add_metrics_port(parser)
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
    check_metrics_port(parser, args)
    if args.metrics_port is not None and (args.describe or args.requests or args.cancel_request is not None):
        return parser.error("--metrics-port is for a controller that runs")
    if args.describe:
        return describe(args)
    if args.requests:
        return show_requests(args)
    if args.cancel_request is not None:
        return cancel_request(args)
    return run_controller(args)


def describe(args: argparse.Namespace) -> int:
    """Shows who is active."""
    cluster = Cluster.open(args.cluster, settings(args.command_config))
    lease = lease_row(observe_controller(cluster))
    Report([lease], () if args.all else _LEASE_COLUMNS).show(args.output or TABLE)
    return OK


def show_requests(args: argparse.Namespace) -> int:
    """Shows the requests with their outcomes; in a table that has not all columns, their ids are short."""
    rows = request_rows(AdminClient(args.cluster, settings(args.command_config)))
    short = [{**row, "request": str(row["request"])[:_SHORT]} for row in rows]
    report = Report(rows) if args.all else Report(short, _REQUEST_COLUMNS, value=rows)
    report.show(args.output or TABLE)
    return OK


def cancel_request(args: argparse.Namespace) -> int:
    """Cancels a request that waits, from any command; the first 8 characters of its id are enough."""
    admin = admin_client_of(args.cluster, args.command_config, "controller")
    request = admin.cancel_request(_full_id(admin, args.cancel_request))
    say(f"Cancelled request {request.request_id}: {request.kind} by {request.requested_by or 'somebody'}.")
    return OK


def _full_id(admin: AdminClient, text: str) -> str:
    """The id that begins like this, of a request that waits if there is one; the text itself if none does.

    Raises InvalidRequestException if several do, or if the text is too short to be a beginning.
    """
    requests = [request for request in admin.list_requests() if request.request_id.startswith(text)]
    waiting = [request for request in requests if request.outcomes is None]
    found = [request.request_id for request in waiting or requests]
    if not found or text in (request.request_id for request in requests):
        return text
    if len(text) < _SHORT:
        raise InvalidRequestException(f"{text!r} is too short: give {_SHORT} or more characters of the request's id")
    if len(found) > 1:
        raise InvalidRequestException(f"several requests begin with {text}: {', '.join(found)}")
    return found[0]


def run_controller(args: argparse.Namespace) -> int:
    """A controller that stands for election, and is active or stands by until a signal stops the process.

    Raises FencedClusterRootException if the cluster root was recovered elsewhere."""
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    log_to_stderr(f"controller {name}", args.log_level, args.log_format)
    with serving_metrics(args, f"controller {name} of {args.cluster}") as metrics:
        cluster = Cluster.open(args.cluster, settings(args.command_config))
        check_conditional_put(cluster.root)
        controller = Controller(cluster, name)
        if metrics is not None:
            metrics.server = lambda: ServerFigures(time.time() - controller.seconds_since_round(), controller.is_active)
        is_signalled = stop_signals()
        controller.start()
        wait_until(lambda: is_signalled() or controller.failure is not None)
        controller.stop()
        if controller.failure is not None:
            raise controller.failure
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
