"""`controller`: who controls the cluster. An election and each renewal is one compare-and-set. [CE-02, CE-03, CE-04]

A renewal changes no row: the lease is the version of the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.tables.state_table import Row, TypedTable
from lakelog.schemas import CONTROLLER

# The staleness of the view that a renewal begins with: its commit loses if the table has moved.
_UNTIL_IT_LOSES = float("inf")


class ControllerLease(TypedTable[Lease | None]):
    """The lease of the active controller, as one process sees it. Kafka: the znodes `/controller` and
    `/controller_epoch`."""

    TABLE = CONTROLLER

    def read(self) -> Lease | None:
        """The row as it is now; None before the first election."""
        self.refresh()
        return self._lease

    def watched(self, max_staleness: float) -> Lease | None:
        """The row. In an object store it may come from an earlier poll of this process, at most `max_staleness` seconds
        old."""
        self.watch(max_staleness)
        return self._lease

    @property
    def _lease(self) -> Lease | None:
        return _lease(self._table.rows, self.version)

    def elect(self, controller_id: str, seen: Lease | None) -> Lease | None:
        """Acquires the lease with the next epoch if the row still equals `seen`; otherwise returns None."""
        mine = Lease(controller_id, seen.controller_epoch + 1 if seen else 1)

        def change(rows: list[Row]) -> list[Row] | None:
            return [_row(mine)] if _lease(rows, self.version) == seen else None

        self._table.recover()
        self._table.update({"who": controller_id, "why": "elected"}, change)
        found = self._lease
        is_mine = found is not None and found.controller_id == mine.controller_id
        return found if is_mine and found is not None and found.controller_epoch == mine.controller_epoch else None

    def renew(self, held: Lease) -> Lease:
        """Moves the lease. Raises ControllerMovedException if another was elected."""
        return self._change(held, "renewed", lambda found: found, _UNTIL_IT_LOSES)

    def resign(self, held: Lease) -> None:
        """Releases the lease, so that the next controller need not wait. Raises ControllerMovedException. [CE-06]"""
        self._change(held, "resigned", lambda found: dataclasses.replace(found, resigned=True))

    def _change(
        self, held: Lease, why: str, move: Callable[[Lease], Lease], noop_staleness: float | None = None
    ) -> Lease:
        def change(rows: list[Row]) -> list[Row]:
            found = _lease(rows, self.version)
            if found is None or found.controller_epoch != held.controller_epoch:
                now = (
                    f"{found.controller_id} was elected under epoch {found.controller_epoch}"
                    if found
                    else "nobody is elected"
                )
                raise ControllerMovedException(
                    f"{held.controller_id}: controller epoch {held.controller_epoch} is over: {now}"
                )
            return [_row(move(found))]

        self._table.update({"who": held.controller_id, "why": why}, change, noop_staleness=noop_staleness)
        moved = self._lease
        assert moved is not None, "a lease that is held has a row"
        return moved


def _lease(rows: list[Row], version: int) -> Lease | None:
    return Lease(**rows[0], lease=version) if rows else None


def _row(lease: Lease) -> Row:
    return {name: value for name, value in dataclasses.asdict(lease).items() if name != "lease"}
