"""What `lakelog controller` does: runs one, shows who is active and what was asked, cancels a request."""

import argparse
import os
import socket
import uuid

from lakelog.jobs.admin.controller_view import lease_row, request_rows
from lakelog.jobs.cli.console import OK, TABLE, log_to_stderr, say, show
from lakelog.jobs.cli.options import admin_client_of
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.waiting import stop_signals, wait_until
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.controller.controller import Controller
from lakelog.replication.storage.cluster import Cluster


def describe(admin: AdminClient, output: str | None) -> int:
    """Shows who is active."""
    show([lease_row(admin)], output or TABLE)
    return OK


def show_requests(admin: AdminClient, output: str | None) -> int:
    """Shows the requests with their outcomes."""
    show(request_rows(admin), output or TABLE)
    return OK


def cancel_request(args: argparse.Namespace) -> int:
    """Cancels a request that waits, whoever has asked."""
    request = admin_client_of(args.cluster, args.command_config, "controller").cancel_request(args.cancel_request)
    say(f"Cancelled request {request.request_id}: {request.kind} by {request.requested_by or 'somebody'}.")
    return OK


def run_controller(args: argparse.Namespace) -> int:
    """A controller that stands for election, and is active or stands by until the process is told to stop."""
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    log_to_stderr(f"controller {name}", args.log_level)
    controller = Controller(Cluster.open(args.cluster, settings(args.command_config)), name)
    told = stop_signals()
    controller.start()
    wait_until(told)
    controller.stop()
    return OK
