"""The requests in the `admin` table: the active controller takes them up, applies them, and answers or refuses them.

It commits each state before the work of that state. So the next controller can tell during which request this one has
died, and no request can end one controller after another. [LI-06, FO-04]
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

from lakelog.replication.config import Config
from lakelog.replication.controller.events import EVENT_OF_REQUEST
from lakelog.replication.errors import InvalidRequestException, TimeoutException
from lakelog.replication.protocol.admin_request import APPLYING, DECIDING, PENDING, AdminRequest, Outcome
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.replication.storage.tables.metadata_history import requests_carried_out

_WHO = "controller"


class AdminRequests:
    """The requests under one controller epoch. Writes raise ControllerMovedException once a newer controller has
    claimed the table."""

    def __init__(
        self, admin: AdminTable, config: Config, controller_epoch: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admin = admin
        self._config = config
        self._epoch = controller_epoch
        self._clock = clock
        # When a request was first seen, undecided and decided, by our clock: the client's clock may differ.
        self._seen_at: dict[tuple[str, bool], float] = {}
        self._older: set[str] | None = None  # requests that were there at the first look of this term

    def settle_what_has_landed(self, cluster: StorageRoot) -> None:
        """Answers the requests whose changes the last controller wrote before it died without an answer. [FO-04]"""
        self._admin.refresh()
        pending = [request for request in self._admin.requests if request.outcomes is None]
        if pending:
            landed = requests_carried_out(cluster, min(request.metadata_version for request in pending))
            self._settle({r.request_id: landed[r.request_id] for r in pending if r.request_id in landed})

    def look(self) -> list[AdminRequest]:
        """The waiting requests, oldest first. It refuses those that cannot be carried out."""
        self._admin.poll()
        requests = self._admin.requests
        self._note(requests)
        pending = [request for request in requests if request.outcomes is None]
        refused = {request.request_id: outcome for request in pending if (outcome := self._refusal(request))}
        self._settle({r.request_id: {r.kind: refused[r.request_id]} for r in pending if r.request_id in refused})
        self._forget_dry_runs(requests)
        # Events of one request must be equal in every state, so that it is queued once.
        return [
            dataclasses.replace(request, state=PENDING, controller_epoch=-1)
            for request in pending
            if request.request_id not in refused
        ]

    def take_up(self, request: AdminRequest) -> bool:
        """Marks a request as being decided. Returns False if it has timed out or was withdrawn."""
        if self._is_over(request):
            self._settle({request.request_id: {request.kind: _expired(request)}})
            return False
        return self._admin.move(request.request_id, DECIDING, self._epoch)

    def begin_to_apply(self, request: AdminRequest) -> bool:
        """Marks a request as being applied: from now on it will be finished. Returns False if it was withdrawn."""
        return self._admin.move(request.request_id, APPLYING, self._epoch)

    def answer(self, request: AdminRequest, outcomes: Mapping[str, Outcome]) -> None:
        """Stores the outcomes of a request, by topic, partition, broker or kind."""
        self._settle({request.request_id: outcomes})

    def release(self) -> None:
        """Puts back a request that was being decided, as the request is not the reason why this controller stops."""
        for request in self._admin.requests:
            if (request.state, request.controller_epoch) == (DECIDING, self._epoch):
                self._admin.move(request.request_id, PENDING, self._epoch)

    def _settle(self, decided: Mapping[str, Mapping[str, Outcome]]) -> None:
        if decided:
            self._admin.decide(decided, self._epoch, self._config.lakelog_admin_requests_kept)

    def _note(self, requests: list[AdminRequest]) -> None:
        if self._older is None:
            self._older = {request.request_id for request in requests if request.outcomes is None}
        now, there = self._clock(), [(request.request_id, request.outcomes is not None) for request in requests]
        self._seen_at = {key: self._seen_at.get(key, now) for key in there}

    def _refusal(self, request: AdminRequest) -> Outcome | None:
        """The outcome of a request that cannot be carried out; None if it can."""
        if request.problem is not None:
            return _invalid(f"request {request.request_id} cannot be read: {request.problem}")
        if request.kind not in EVENT_OF_REQUEST:
            return _invalid(f"{request.kind} is none of {', '.join(EVENT_OF_REQUEST)}")
        if request.state == DECIDING and request.controller_epoch != self._epoch:
            return _invalid(
                f"request {request.request_id}: the controller of epoch {request.controller_epoch} ended while it "
                "decided this request; nothing was written, and no controller decides it again, as it might end too"
            )
        if request.state != APPLYING and self._is_over(request):
            return _expired(request)
        return None

    def _is_over(self, request: AdminRequest) -> bool:
        """Whether the client's time-out has passed. A live client withdraws its own request, but a dead one cannot.

        A request that is older than this term may have waited for days without a controller. Only its deadline tells,
        by the clock of its client. A wrong clock refuses no request that comes during the term.
        """
        if request.deadline_ms is not None and request.request_id in (self._older or ()):
            return time.time() * 1000 >= request.deadline_ms
        return request.timeout_ms >= 0 and self._has_waited(request, False, request.timeout_ms)

    def _has_waited(self, request: AdminRequest, is_decided: bool, milliseconds: int) -> bool:
        since = self._seen_at.get((request.request_id, is_decided), self._clock())
        return self._clock() - since >= milliseconds / 1000

    def _forget_dry_runs(self, requests: list[AdminRequest]) -> None:
        """Removes old answers to dry runs that no client has fetched. Clients remove the answers that they fetch."""
        kept_ms = self._config.request_timeout_ms
        dry_runs = [request for request in requests if request.validate_only and request.outcomes is not None]
        over = [r.request_id for r in dry_runs if self._has_waited(r, True, max(r.timeout_ms, kept_ms))]
        if over:
            self._admin.forget(over, _WHO)


def _invalid(message: str) -> Outcome:
    return Outcome(InvalidRequestException.__name__, message)


def _expired(request: AdminRequest) -> Outcome:
    return Outcome(
        TimeoutException.__name__, f"its client waited {request.timeout_ms} ms, and no controller decided it"
    )
