"""Rows of what `lakelog controller` shows: the lease, and the requests with their outcomes."""

from collections.abc import Mapping

from lakelog.jobs.admin.heartbeats import SeenController
from lakelog.jobs.cli.console import Row
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import ControllerNotAvailableException
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome

_WAITING = Outcome(None, "no controller has decided it yet")
_NOTHING = Outcome(None, "nothing needed to be done")


def controller_row(seen: SeenController) -> Row:
    """Who controls the cluster, or did last."""
    lease = seen.lease
    return {
        "controller": None if lease is None else lease.controller_id,
        "controller_epoch": None if lease is None else lease.controller_epoch,
        "state": seen.state,
        "lease_age_s": None if lease is None else round(seen.age, 1),
    }


def lease_row(seen: SeenController) -> Row:
    """As `controller_row`, with the lease. Raises ControllerNotAvailableException if nobody was ever elected."""
    if seen.lease is None:
        raise ControllerNotAvailableException("no controller was ever elected; run `lakelog controller`")
    return {**controller_row(seen), "lease": seen.lease.lease, "resigned": seen.lease.resigned}


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
