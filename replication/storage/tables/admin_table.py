"""`admin`: requests to the controller, and what has become of them. [TD-01, LI-06, CS-02]

A row stays text until it is read: one that cannot be decoded is a request with a `problem`, which the
controller answers, and no more. A request goes through its states in commits of its own, so that the next controller
knows how far the last one had come with it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lakelog.replication.errors import InvalidRequestException
from lakelog.replication.protocol.admin_request import APPLYING, DECIDED, AdminRequest, Outcome
from lakelog.replication.storage.tables.state_table import ControlledTable, Row
from lakelog.schemas import ADMIN

KEPT = 200  # decided requests, by default

_MAX_ARGUMENTS = 4 * 2**20  # characters
_MAX_KEPT_TEXT = 4 * 2**20  # characters of all decided requests; the table is written whole with each change
_ALWAYS_KEPT = 8  # decided requests, however large: those who have asked still read the answer
_COLUMNS = tuple(column.name for column in ADMIN.columns)


class AdminTable(ControlledTable[list[AdminRequest]]):
    """The requests of a cluster."""

    TABLE = ADMIN

    @property
    def requests(self) -> list[AdminRequest]:
        """All requests that are kept, oldest first, as last read."""
        return self._value

    def _decode(self, rows: list[Row]) -> list[AdminRequest]:
        return [_request(row) for row in rows]

    def request(self, request_id: str) -> AdminRequest | None:
        """One request as last read."""
        return next((request for request in self.requests if request.request_id == request_id), None)

    def add(self, request: AdminRequest, deadline: float | None = None) -> None:
        """Puts a request to whoever is the controller.

        Raises InvalidRequestException if it is too long, TimeoutException at the `deadline`.
        """
        added = _row(request)
        if len(added["arguments"]) > _MAX_ARGUMENTS:
            raise InvalidRequestException(f"{request.kind}: {_too_long(added['arguments'])}")

        def change(rows: list[Row]) -> list[Row] | None:
            is_there = any(row["request_id"] == request.request_id for row in rows)
            return None if is_there else [*rows, added]

        cause = {"who": request.requested_by, "why": request.kind, "request": request.request_id}
        self.update(cause, change, deadline=deadline, once=True)

    def withdraw(self, request_id: str, error: Outcome, who: str) -> AdminRequest | None:
        """Fails a request that no controller has taken up, with `error`. A dry run is deleted instead.

        Returns the request as it is then: what was decided or is being applied stays as it is; None if it does not
        exist.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            found = next((row for row in rows if row["request_id"] == request_id), None)
            if found is None or _is_decided(found) or found.get("state") == APPLYING:
                return None
            kind = str(found["kind"])
            return _replaced(rows, {request_id: None if found["validate_only"] else _settled(found, {kind: error})})

        self.update({"who": who, "why": "withdrawn", "request": request_id}, change)
        return self.request(request_id)

    def forget(self, request_ids: Collection[str], who: str) -> None:
        """Removes decided requests, such as those whose client only wanted to know."""

        def change(rows: list[Row]) -> list[Row] | None:
            gone = {row["request_id"]: None for row in rows if row["request_id"] in request_ids and _is_decided(row)}
            return _replaced(rows, gone) if gone else None

        self.update({"who": who, "why": "forgotten", "requests": sorted(request_ids)}, change)

    def move(self, request_id: str, state: str, controller_epoch: int) -> bool:
        """Records how far a controller has come with a request; False if the request was decided or withdrawn
        meanwhile.

        A request that is being applied stays so: part of it may be written. Raises ControllerMovedException if a newer
        controller has claimed the table.
        """

        def change(rows: list[Row]) -> list[Row] | None:
            self._check_claim(controller_epoch)
            found = next((row for row in rows if row["request_id"] == request_id), None)
            moved = {"state": state, "controller_epoch": controller_epoch}
            if found is None or _is_decided(found) or found.get("state") == APPLYING or moved.items() <= found.items():
                return None
            return _replaced(rows, {request_id: {**found, **moved}})

        self.update({"who": "controller", "why": state, "request": request_id}, change)
        found = self.request(request_id)
        return found is not None and found.outcomes is None

    def decide(self, decided: Mapping[str, Mapping[str, Outcome]], controller_epoch: int, kept: int = KEPT) -> None:
        """Stores outcomes by request id, and lets go of the oldest that were decided long ago.

        Raises ControllerMovedException if a newer controller has claimed the table.
        """

        def change(rows: list[Row]) -> list[Row]:
            self._check_claim(controller_epoch)
            settled = {
                row["request_id"]: {**_settled(row, decided[row["request_id"]]), "controller_epoch": controller_epoch}
                for row in rows
                if row["request_id"] in decided and not _is_decided(row)
            }
            return _without_old(_replaced(rows, settled), kept)

        cause = {"who": "controller", "why": "decided", "controller_epoch": controller_epoch, "requests": [*decided]}
        self.update(cause, change)


def _replaced(rows: list[Row], changed: Mapping[str, Row | None]) -> list[Row]:
    merged = [changed.get(row["request_id"], row) for row in rows]
    return [row for row in merged if row is not None]


def _settled(row: Row, outcomes: Mapping[str, Outcome]) -> Row:
    return {**row, "outcomes": _json_of(outcomes), "state": DECIDED}


def _without_old(rows: list[Row], kept: int) -> list[Row]:
    """The rows without the oldest decided ones: there are at most `kept`, and all their text is bounded."""
    old: set[str] = set()
    text, decided = 0, [row for row in reversed(rows) if _is_decided(row)]
    for number, row in enumerate(decided):
        text += len(row["arguments"]) + len(row["outcomes"])
        if number >= kept or (number >= _ALWAYS_KEPT and text > _MAX_KEPT_TEXT):
            old.add(row["request_id"])
    return [row for row in rows if row["request_id"] not in old]


def _is_decided(row: Row) -> bool:
    return row["outcomes"] is not None


def _request(row: Row) -> AdminRequest:
    """The row as a request. Fields that cannot be decoded are omitted, and named in `problem`."""
    problems: list[str] = []
    arguments = _decoded(row["arguments"], _arguments, problems)
    outcomes = None if row["outcomes"] is None else _decoded(row["outcomes"], _outcomes, problems)
    known = {name: row[name] for name in _COLUMNS if name in row}
    problem = "; ".join(problems) or None
    return AdminRequest(**{**known, "arguments": arguments, "outcomes": outcomes, "problem": problem})


def _decoded(text: str, decode: Callable[[str], dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    try:
        return decode(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problems.append(f"{type(error).__name__}: {error}")
        return {}


def _arguments(text: str) -> dict[str, Any]:
    if len(text) > _MAX_ARGUMENTS:
        raise ValueError(_too_long(text))
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("the arguments are no JSON object")
    return found


def _outcomes(text: str) -> dict[str, Any]:
    return {name: Outcome(outcome["error"], outcome["message"]) for name, outcome in json.loads(text).items()}


def _too_long(arguments: str) -> str:
    return f"the arguments have {len(arguments)} characters as JSON, {_MAX_ARGUMENTS} are allowed"


def _json_of(outcomes: Mapping[str, Outcome]) -> str:
    return json.dumps({name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()})


def _row(request: AdminRequest) -> Row:
    return {
        **{name: getattr(request, name) for name in _COLUMNS},
        "arguments": json.dumps(dict(request.arguments)),
        "outcomes": None if request.outcomes is None else _json_of(request.outcomes),
    }
