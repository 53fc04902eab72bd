"""`controller`: who controls the cluster. An election and each renewal is one compare-and-set. [CE-02, CE-03, CE-04]"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.lease import Lease
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import CONTROLLER


class ControllerLease:
    """The office of the controller, as one process sees it. Kafka: the znodes `/controller` and `/controller_epoch`."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    @classmethod
    def create(cls, cluster: StorageRoot) -> ControllerLease:
        """Makes the table without a row."""
        return cls(StateTable.create(cluster.child(CONTROLLER.name), CONTROLLER))

    @classmethod
    def open(cls, cluster: StorageRoot) -> ControllerLease:
        """Opens the table of a formatted cluster root."""
        return cls(StateTable.open(cluster.child(CONTROLLER.name), CONTROLLER))

    def read(self) -> Lease | None:
        """The row as it is now; None if nobody has ever been elected."""
        self._table.refresh()
        return self._current()

    def maintain(self) -> None:
        """Keeps opening cheap; for the active controller, now and then."""
        self._table.maintain()

    def _current(self) -> Lease | None:
        return Lease(**self._table.rows[0]) if self._table.rows else None

    def elect(self, controller_id: str, seen: Lease | None) -> Lease | None:
        """Takes the office over from `seen`, under the next epoch; None if the row is not what was seen any more."""
        mine = Lease(controller_id, seen.controller_epoch + 1 if seen else 1)

        def change(rows: list[Row]) -> list[Row] | None:
            found = Lease(**rows[0]) if rows else None
            return [dataclasses.asdict(mine)] if found == seen else None

        self._table.update({"who": controller_id, "why": "elected"}, change)
        found = self._current()
        is_mine = found is not None and found.controller_id == mine.controller_id
        return found if is_mine and found is not None and found.controller_epoch == mine.controller_epoch else None

    def renew(self, held: Lease) -> Lease:
        """Moves the lease. Raises ControllerMovedException if another was elected."""
        return self._change(held, "renewed", lambda found: dataclasses.replace(found, lease=found.lease + 1))

    def resign(self, held: Lease) -> None:
        """Gives the office up: the next one need not wait. Raises ControllerMovedException. [CE-06]"""
        self._change(held, "resigned", lambda found: dataclasses.replace(found, resigned=True))

    def _change(self, held: Lease, why: str, move: Callable[[Lease], Lease]) -> Lease:
        def change(rows: list[Row]) -> list[Row]:
            found = Lease(**rows[0])
            if found.controller_epoch != held.controller_epoch:
                raise ControllerMovedException(
                    f"{held.controller_id}: controller epoch {held.controller_epoch} is over: "
                    f"{found.controller_id} was elected under epoch {found.controller_epoch}"
                )
            return [dataclasses.asdict(move(found))]

        self._table.update({"who": held.controller_id, "why": why}, change)
        return Lease(**self._table.rows[0])
