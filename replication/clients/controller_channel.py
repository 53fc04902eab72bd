"""Asks the controller for something by a row in `admin`, and waits until it is decided.

Kafka: `BrokerToControllerChannelManager`, on which brokers forward what admin clients ask.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lakelog.replication.clients.topic_view import pause
from lakelog.replication.errors import (
    InvalidRequestException,
    LakelogException,
    RequestCancelledException,
    TimeoutException,
)
from lakelog.replication.protocol.admin_request import (
    APPLYING,
    AdminRequest,
    Outcome,
    PartitionLimits,
    check_arguments,
    check_limits,
)
from lakelog.replication.storage.cluster import Cluster


class ControllerChannel:
    """One client's way to whichever controller is active. `requested_by` is a name for people."""

    def __init__(self, cluster: Cluster, requested_by: str) -> None:
        self._cluster = cluster
        self._requested_by = requested_by

    def ask(self, kind: str, arguments: Mapping[str, Any], *, validate_only: bool) -> AdminRequest:
        """The request as it was decided; one that only asks what would be done leaves no row behind.

        A client that gives up, because its time is over or something interrupts it, withdraws its request. Raises
        InvalidRequestException, PolicyViolationException, TimeoutException, and RequestCancelledException if somebody
        removes the request.
        """
        check_arguments(kind, arguments)
        check_limits(kind, arguments, PartitionLimits.of(self._cluster.config))
        deadline = time.monotonic() + self._cluster.config.request_timeout_ms / 1000
        request = self._put(kind, arguments, validate_only, deadline)
        try:
            decided = self._decided(request, deadline)
        except BaseException:  # an interrupted notebook cell, too, does not want it any more
            with suppress(LakelogException):
                self._withdraw(request, "its client was interrupted")
            raise
        if decided is None:
            decided = self._give_up(request)
        if validate_only:
            self._cluster.admin.forget([request.request_id], self._requested_by)
        return decided

    def cancel(self, request_id: str) -> AdminRequest:
        """Cancels a request that no controller applies yet. Raises InvalidRequestException if there is none such."""
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

    def _put(self, kind: str, arguments: Mapping[str, Any], validate_only: bool, deadline: float) -> AdminRequest:
        self._cluster.metadata.refresh()
        request = AdminRequest(
            uuid.uuid4().hex, kind, arguments, validate_only, self._requested_by, self._cluster.metadata.version,
            timeout_ms=self._cluster.config.request_timeout_ms,
        )  # fmt: skip
        self._cluster.admin.add(request, deadline)
        return request

    def _decided(self, request: AdminRequest, deadline: float) -> AdminRequest | None:
        """The request with its outcome; None if it has none in time."""
        admin = self._cluster.admin
        while time.monotonic() < deadline:
            found = admin.request(request.request_id)
            if found is None:
                raise RequestCancelledException(f"{request.kind}: somebody has removed request {request.request_id}")
            if found.outcomes is not None:
                return found
            pause(self._cluster.config.lakelog_poll_interval_ms, deadline)
            admin.refresh()
        return None

    def _give_up(self, request: AdminRequest) -> AdminRequest:
        """Withdraws it; answers with what was decided at the last moment. Raises TimeoutException."""
        said = f"{request.kind}: no controller has decided request {request.request_id} within {request.timeout_ms} ms"
        left = self._withdraw(request, f"its client waited {request.timeout_ms} ms, and no controller decided it")
        if left is not None and left.state == APPLYING:
            raise TimeoutException(
                f"{said}; that of epoch {left.controller_epoch} is carrying it out: see `controller --requests`"
            )
        outcomes = {} if left is None else left.outcomes or {}
        if left is None or any(outcome.error == TimeoutException.__name__ for outcome in outcomes.values()):
            raise TimeoutException(f"{said}; it is withdrawn")
        return left

    def _withdraw(self, request: AdminRequest, why: str) -> AdminRequest | None:
        error = Outcome(TimeoutException.__name__, why)
        return self._cluster.admin.withdraw(request.request_id, error, self._requested_by)
