"""The claim of a controller on a table: what an older controller writes there is refused. [CE-04, CE-05]"""

from __future__ import annotations

from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.storage.tables.state_table import Row, StateTable

_CONTROLLER_EPOCH = "controller-epoch"


def claim(table: StateTable, name: str, controller_epoch: int) -> None:
    """Makes a controller the only one that may write here. Raises ControllerMovedException if a newer one has."""

    def change(rows: list[Row]) -> list[Row] | None:
        check_claim(table, name, controller_epoch)
        return None if table.transaction_version(_CONTROLLER_EPOCH) == controller_epoch else rows

    cause = {"who": "controller", "why": "claim", "controller_epoch": controller_epoch}
    table.update(cause, change, {_CONTROLLER_EPOCH: controller_epoch})


def check_claim(table: StateTable, name: str, controller_epoch: int | None) -> None:
    """Raises ControllerMovedException if the table, as last read, is claimed by a newer controller."""
    claimed = table.transaction_version(_CONTROLLER_EPOCH)
    if controller_epoch is not None and claimed is not None and claimed > controller_epoch:
        raise ControllerMovedException(
            f"{name}: controller epoch {controller_epoch} is over: epoch {claimed} has claimed the table"
        )
