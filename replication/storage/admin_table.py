"""`admin`: requests to the controller, and what has become of them. [TD-01, LI-06, CS-02]"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replication.storage.controller_claim import check_claim, claim
from replication.storage.filesystem import StorageRoot
from replication.storage.state_table import Row, StateTable
from schemas import ADMIN

_KEPT = 200  # decided requests


@dataclass(frozen=True)
class Outcome:
    """What has become of one part of a request: done if `error` is None; a word for people."""

    error: str | None
    message: str


@dataclass(frozen=True)
class AdminRequest:
    """A request; `outcomes` by topic or partition, None as long as no controller has decided."""

    request_id: str
    kind: str
    arguments: Mapping[str, Any]
    validate_only: bool = False
    requested_by: str = ""
    metadata_version: int = -1
    outcomes: Mapping[str, Outcome] | None = None
    controller_epoch: int = -1


class AdminTable:
    """The requests of a cluster."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    @classmethod
    def create(cls, cluster: StorageRoot) -> AdminTable:
        """Makes the table without rows."""
        return cls(StateTable.create(cluster.child(ADMIN.name), ADMIN))

    @classmethod
    def open(cls, cluster: StorageRoot) -> AdminTable:
        """Opens the table of a formatted cluster root."""
        return cls(StateTable.open(cluster.child(ADMIN.name), ADMIN))

    @property
    def requests(self) -> list[AdminRequest]:
        """All requests that are kept, oldest first, as last read."""
        return [_request(row) for row in self._table.rows]

    def refresh(self) -> bool:
        """Reads the table again if it has moved; tells whether it had."""
        return self._table.refresh()

    def request(self, request_id: str) -> AdminRequest | None:
        """One request as last read."""
        return next((request for request in self.requests if request.request_id == request_id), None)

    def add(self, request: AdminRequest) -> None:
        """Puts a request to whoever is the controller."""

        def change(rows: list[Row]) -> list[Row] | None:
            is_there = any(row["request_id"] == request.request_id for row in rows)
            return None if is_there else [*rows, _row(request)]

        cause = {"who": request.requested_by, "why": request.kind, "request": request.request_id}
        self._table.update(cause, change)

    def keep_cheap(self) -> None:
        """Keeps opening cheap; for the active controller, now and then."""
        self._table.keep_cheap()

    def claim(self, controller_epoch: int) -> None:
        """Makes a controller the only one that decides here. Raises ControllerMovedException."""
        claim(self._table, ADMIN.name, controller_epoch)

    def decide(self, decided: Mapping[str, Mapping[str, Outcome]], controller_epoch: int) -> None:
        """Stores outcomes by request id, and lets go of the oldest that were decided long ago.

        Raises ControllerMovedException if a newer controller has claimed the table.
        """

        def change(rows: list[Row]) -> list[Row]:
            check_claim(self._table, ADMIN.name, controller_epoch)
            requests = [self._decided(_request(row), decided, controller_epoch) for row in rows]
            old = [request.request_id for request in requests if request.outcomes is not None][:-_KEPT]
            return [_row(request) for request in requests if request.request_id not in old]

        cause = {"who": "controller", "why": "decided", "controller_epoch": controller_epoch, "requests": [*decided]}
        self._table.update(cause, change)

    @staticmethod
    def _decided(
        request: AdminRequest, decided: Mapping[str, Mapping[str, Outcome]], controller_epoch: int
    ) -> AdminRequest:
        outcomes = decided.get(request.request_id)
        if outcomes is None or request.outcomes is not None:
            return request
        return dataclasses.replace(request, outcomes=outcomes, controller_epoch=controller_epoch)


def _request(row: Row) -> AdminRequest:
    told = None if row["outcomes"] is None else json.loads(row["outcomes"])
    outcomes = None if told is None else {name: Outcome(**outcome) for name, outcome in told.items()}
    return AdminRequest(**{**row, "arguments": json.loads(row["arguments"]), "outcomes": outcomes})


def _row(request: AdminRequest) -> Row:
    told = {name: dataclasses.asdict(outcome) for name, outcome in (request.outcomes or {}).items()}
    return {
        **{field.name: getattr(request, field.name) for field in dataclasses.fields(request)},
        "arguments": json.dumps(dict(request.arguments)),
        "outcomes": None if request.outcomes is None else json.dumps(told),
    }
