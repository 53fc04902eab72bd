"""Rows of what `lakelog controller` shows: the lease, and the requests with their outcomes."""

from collections.abc import Mapping

from lakelog.jobs.cli.console import Row
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import ControllerNotAvailableException
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome

_WAITING = Outcome(None, "no controller has decided it yet")
_NOTHING = Outcome(None, "nothing needed to be done")


def lease_row(admin: AdminClient) -> Row:
    """Who controls the cluster. Raises ControllerNotAvailableException if nobody ever did."""
    lease = admin.describe_controller()
    if lease is None:
        raise ControllerNotAvailableException("no controller was ever elected; run `lakelog controller`")
    return {
        "controller": lease.controller_id,
        "controller_epoch": lease.controller_epoch,
        "lease": lease.lease,
        "resigned": lease.resigned,
    }


def request_rows(admin: AdminClient) -> list[Row]:
    """A row for each outcome of each request, oldest first."""
    return [
        _row(request, name, outcome)
        for request in admin.list_requests()
        for name, outcome in _outcomes(request).items()
    ]


def _outcomes(request: AdminRequest) -> Mapping[str, Outcome]:
    return {"": _WAITING} if request.outcomes is None else request.outcomes or {"": _NOTHING}


def _row(request: AdminRequest, name: str, outcome: Outcome) -> Row:
    return {
        "request": request.request_id,
        "kind": request.kind,
        "requested_by": request.requested_by,
        "dry_run": request.validate_only,
        "state": request.state,
        "of": name,
        "error": outcome.error,
        "message": " ".join(outcome.message.split()),  # a row a line
        "controller_epoch": None if request.controller_epoch < 0 else request.controller_epoch,
    }
