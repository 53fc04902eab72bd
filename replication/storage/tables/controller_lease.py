"""`controller`: who controls the cluster. An election and each renewal is one compare-and-set. [CE-02, CE-03, CE-04]

A renewal changes no row: the lease is the version of the table. In a cluster with several roots a renewal is a sign of
life, see `LifeSigns`, and the lease is the sum of its number and the version: the claims of the next controller fence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import CONTROLLER

# The staleness of the view that a renewal begins with: its commit loses if the table has moved.
_UNTIL_IT_LOSES = float("inf")


class ControllerLease(StateTable[Lease | None]):
    """The lease of the active controller, as one process sees it. Kafka: the znodes `/controller` and
    `/controller_epoch`."""

    TABLE = CONTROLLER
    _sign = 0, 0  # the controller epoch and the number of the sign of life that was last read

    def read(self) -> Lease | None:
        """The row as it is now; None before the first election."""
        self.refresh()
        self._read_sign(None)
        return self.lease

    def watched(self, max_staleness: float) -> Lease | None:
        """The row. In an object store it may come from an earlier poll of this process, at most `max_staleness` seconds
        old."""
        self.refresh(max_staleness)
        self._read_sign(max_staleness)
        return self.lease

    @property
    def lease(self) -> Lease | None:
        """The row as last read; None before the first election."""
        return self._lease_of(self.rows)

    def _lease_of(self, rows: list[Row]) -> Lease | None:
        if not rows:
            return None
        epoch, number = self._sign
        return Lease(**rows[0], lease=self.version + (number if rows[0]["controller_epoch"] == epoch else 0))

    def _read_sign(self, max_staleness: float | None) -> None:
        rows = self.rows
        if self.root.has_signs and rows:
            epoch = rows[0]["controller_epoch"]
            self._sign = epoch, self.root.life_sign(epoch, max_staleness)

    def elect(self, controller_id: str, seen: Lease | None) -> Lease | None:
        """Acquires the lease with the next epoch if the row still equals `seen`; otherwise returns None."""
        mine = Lease(controller_id, seen.controller_epoch + 1 if seen else 1)

        def change(rows: list[Row]) -> list[Row] | None:
            return [_row(mine)] if self._lease_of(rows) == seen else None

        self.recover()
        self._read_sign(None)
        self.update({"who": controller_id, "why": "elected"}, change)
        found = self.lease
        is_mine = found is not None and found.controller_id == mine.controller_id
        return found if is_mine and found is not None and found.controller_epoch == mine.controller_epoch else None

    def renew(self, held: Lease) -> Lease:
        """Moves the lease. Raises ControllerMovedException if another was elected."""
        if self.root.has_signs:
            self.refresh()
            found = _check_held(held, self.lease)
            self._sign = held.controller_epoch, self.root.show_life(held.controller_epoch)
            return dataclasses.replace(found, lease=self.version + self._sign[1])
        return self._change(held, "renewed", lambda found: found, _UNTIL_IT_LOSES)

    def resign(self, held: Lease) -> None:
        """Releases the lease, so that the next controller need not wait. Raises ControllerMovedException. [CE-06]"""
        self._change(held, "resigned", lambda found: dataclasses.replace(found, resigned=True))

    def _change(
        self, held: Lease, why: str, move: Callable[[Lease], Lease], noop_staleness: float | None = None
    ) -> Lease:
        def change(rows: list[Row]) -> list[Row]:
            return [_row(move(_check_held(held, self._lease_of(rows))))]

        self.update({"who": held.controller_id, "why": why}, change, noop_staleness=noop_staleness)
        moved = self.lease
        assert moved is not None, "a lease that is held has a row"
        return moved


def _check_held(held: Lease, found: Lease | None) -> Lease:
    """The lease as found. Raises ControllerMovedException if it is not the one that is held."""
    if found is None or found.controller_epoch != held.controller_epoch:
        now = (
            f"{found.controller_id} was elected under epoch {found.controller_epoch}" if found else "nobody is elected"
        )
        raise ControllerMovedException(f"{held.controller_id}: controller epoch {held.controller_epoch} is over: {now}")
    return found


def _row(lease: Lease) -> Row:
    return {name: value for name, value in dataclasses.asdict(lease).items() if name != "lease"}
