"""Sends a request to the controller as a row in the `admin` table, waits until the controller has decided it, and
reports why no controller answers.

Kafka: `BrokerToControllerChannelManager`, through which brokers forward the requests of admin clients.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from typing import Any

from lakelog.replication.clients.topic_view import pause
from lakelog.replication.errors import (
    ControllerNotAvailableException,
    InvalidRequestException,
    LakelogException,
    RequestCancelledException,
    TimeoutException,
)
from lakelog.replication.protocol.admin_request import (
    AdminRequest,
    Outcome,
    PartitionLimits,
    check_arguments,
    check_limits,
)
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import newest_commit
from lakelog.schemas import CONTROLLER

Report = Callable[[str], None]

_POLLS = 3  # per session time-out, as often as a controller renews its lease; stores charge for each read

_OPEN = "it may still be carried out"


class ControllerChannel:
    """One client's channel to the active controller. `requested_by` names the client in the `admin` table.

    `report` is called with sentences for the user: why no controller answers, and the state of the request when the
    client is interrupted, or cannot withdraw it. Without it the client only waits.
    """

    def __init__(self, cluster: Cluster, requested_by: str, report: Report | None = None) -> None:
        self._cluster = cluster
        self._requested_by = requested_by
        self._report = report

    def ask(self, kind: str, arguments: Mapping[str, Any], *, validate_only: bool) -> AdminRequest:
        """Returns the decided request. With `validate_only` its row is removed afterwards, and without an active
        controller there is none: ControllerNotAvailableException is raised before.

        The client withdraws its request at the time-out and when it is interrupted. Raises InvalidRequestException,
        PolicyViolationException, TimeoutException, KafkaStorageException, and RequestCancelledException if the row is
        removed.
        """
        check_arguments(kind, arguments)
        arguments = dict(arguments)
        check_limits(kind, arguments, PartitionLimits.of(self._cluster.config))
        deadline = time.monotonic() + self._cluster.config.request_timeout_ms / 1000
        if validate_only:
            check_active(self._cluster, self._report, deadline)
        request = self._request(kind, arguments, validate_only)
        watch = ControllerWatch(self._cluster, self._report) if self._report else None
        is_sent = False
        try:
            if watch:
                watch.poll(deadline)
            self._cluster.admin.add(request, deadline)
            is_sent = True
            decided = self._decided(request, deadline, watch)
        except BaseException as error:  # an interrupted notebook cell, too, withdraws its request
            self._interrupted(request, error, is_sent)
            raise
        if decided is None:
            decided = self._give_up(request)
        if validate_only:
            self._cluster.admin.forget([request.request_id], self._requested_by)
        return decided

    def cancel(self, request_id: str) -> AdminRequest:
        """Cancels an undecided request. Raises InvalidRequestException if it is unknown, decided or being applied."""
        admin = self._cluster.admin
        admin.refresh()
        there = {request.request_id: request for request in admin.requests}
        found = there.get(request_id)
        if found is None:
            waiting = ", ".join(name for name, request in there.items() if request.outcomes is None) or "none"
            raise InvalidRequestException(f"no request {request_id}; undecided are: {waiting}")
        if found.outcomes is not None:
            raise InvalidRequestException(f"request {request_id} is decided; a new request may undo what it did")
        error = Outcome(RequestCancelledException.__name__, f"cancelled by {self._requested_by}")
        left = admin.withdraw(request_id, error, self._requested_by)
        if left is not None and (left.outcomes is None or error not in left.outcomes.values()):
            raise InvalidRequestException(
                f"request {request_id}: the controller of epoch {left.controller_epoch} carries it out already"
            )
        return found

    def _request(self, kind: str, arguments: Mapping[str, Any], validate_only: bool) -> AdminRequest:
        self._cluster.metadata.refresh()
        timeout_ms = self._cluster.config.request_timeout_ms
        return AdminRequest(
            uuid.uuid4().hex, kind, arguments, validate_only, self._requested_by, self._cluster.metadata.version,
            timeout_ms=timeout_ms, deadline_ms=int(time.time() * 1000) + timeout_ms,
        )  # fmt: skip

    def _decided(self, request: AdminRequest, deadline: float, watch: ControllerWatch | None) -> AdminRequest | None:
        """The request with its outcomes; None if the deadline passes first."""
        admin = self._cluster.admin
        while time.monotonic() < deadline:
            found = admin.request(request.request_id)
            if found is None:
                raise RequestCancelledException(
                    f"{request.kind}: request {request.request_id} was removed from the table of requests"
                )
            if found.outcomes is not None:
                return found
            pause(self._cluster.config.lakelog_poll_interval_ms, deadline)
            if watch:
                watch.poll(deadline)
            admin.refresh()
        return None

    def _give_up(self, request: AdminRequest) -> AdminRequest:
        """Withdraws the request and raises TimeoutException. Returns it if it was decided at the last moment."""
        why = f"its client waited {request.timeout_ms} ms, and no controller decided it"
        left, fate = self._withdraw(request, why)
        if left is not None:
            return left
        raise TimeoutException(
            f"{request.kind}: no controller has decided request {request.request_id} within {request.timeout_ms} ms; "
            f"{fate}"
        )

    def _interrupted(self, request: AdminRequest, error: BaseException, is_sent: bool) -> None:
        """Withdraws the request. Reports its state to a person who interrupted it. Other errors are raised; then it
        only reports that the request, which was sent, may still be carried out."""
        left, fate = self._withdraw(request, "its client was interrupted")
        if self._report and not isinstance(error, Exception):
            said = fate if left is None else "it was decided before: see `lakelog controller --requests`"
            self._report(f"{request.kind}: request {request.request_id} is interrupted; {said}")
        elif self._report and is_sent and fate.startswith(_OPEN):
            self._report(f"{request.kind}: request {request.request_id} is waited for no longer; {fate}")

    def _withdraw(self, request: AdminRequest, why: str) -> tuple[AdminRequest | None, str]:
        """The request if it was decided before it could be withdrawn; otherwise None, and its state as text."""
        error, request_id = Outcome(TimeoutException.__name__, why), request.request_id
        try:
            left = self._cluster.admin.withdraw(request_id, error, self._requested_by)
        except LakelogException as refused:
            return None, (
                f"{_OPEN}, as it could not be withdrawn: {refused}; "
                f"withdraw it with `lakelog controller --cancel-request {request_id}`"
            )
        if left is None and not request.validate_only:
            return None, "it is not in the table of requests: check whether it was carried out"
        if left is None or any(outcome.error == error.error for outcome in (left.outcomes or {}).values()):
            return None, "it is withdrawn, and nothing of it was done"
        if left.outcomes is None:
            return None, (
                f"the controller of epoch {left.controller_epoch} is carrying it out: "
                "see `lakelog controller --requests`"
            )
        return left, ""


class ControllerWatch:
    """Reads the controller's lease at once, and again while the client waits. Reports each reason once."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report
        self._session_timeout = cluster.config.controller_session_timeout_ms / 1000
        self._next_poll = float("-inf")
        self._seen: Lease | None = None
        self._seen_at = time.monotonic()
        self._reported: set[str] = set()

    def poll(self, deadline: float) -> None:
        """Reports a new reason. It ignores a lease that cannot be read: the request itself raises that error."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + self._session_timeout / _POLLS
        with suppress(LakelogException):
            reason = self._reason(self._cluster.lease.read(), now)
            if reason is not None and reason not in self._reported:
                self._reported.add(reason)
                self._report(f"{reason}; waiting up to {ceil(deadline - now)} s, then the request is withdrawn")

    def _reason(self, lease: Lease | None, now: float) -> str | None:
        if lease is None or lease.resigned:
            return _none_is_active(lease)
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        if now - self._seen_at < self._session_timeout:
            return None
        return f"controller {lease.controller_id} is dead: it has not renewed its lease for its session time-out"


def check_active(cluster: Cluster, report: Report | None, deadline: float) -> None:
    """Raises ControllerNotAvailableException if no controller is active: no request would be answered.

    It waits only if the newest commit of the lease seems old. The clocks of the store and of this machine may differ,
    so it reads the lease again half a session time-out later: a controller that has renewed it since is active.
    """
    lease, session_timeout_ms = cluster.lease.read(), cluster.config.controller_session_timeout_ms
    reason = _none_is_active(lease)
    if lease is not None and reason is None:
        _, written = newest_commit(cluster.root.child(CONTROLLER.name))
        if abs(time.time() - written) < session_timeout_ms / 1000:
            return
        if report:
            seconds = f"{session_timeout_ms / 2000:g} s"
            report(f"controller {lease.controller_id} has not renewed its lease lately: looking again in {seconds}")
        pause(session_timeout_ms // 2, deadline)
        found = cluster.lease.read()
        reason = f"controller {lease.controller_id} is dead: it does not renew its lease"
        if found != lease:
            reason = _none_is_active(found)
    if reason is not None:
        raise ControllerNotAvailableException(f"{reason}; a dry run asks the controller, and nothing was written")


def _none_is_active(lease: Lease | None) -> str | None:
    """Why no controller is active, if the lease alone shows that."""
    if lease is None:
        return "no controller is active, and none ever was: start one with `lakelog controller`"
    return f"no controller is active, the last one has stopped ({lease.controller_id})" if lease.resigned else None
