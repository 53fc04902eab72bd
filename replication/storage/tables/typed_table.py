"""The base of the state tables: a `StateTable` below a root, whose rows are read as values."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import Table

Value = TypeVar("Value")
_Self = TypeVar("_Self", bound="TypedTable")  # type: ignore[type-arg]

_CONTROLLER_EPOCH = "controller-epoch"
_MAINTENANCE_SECONDS = 30.0  # age of a look before a checkpoint, which may be so late


class TypedTable(Generic[Value]):
    """A state table of a root: the folder has the name of its schema, `TABLE`; `Value` is what all rows mean."""

    TABLE: ClassVar[Table]

    def __init__(self, table: StateTable) -> None:
        self._table = table
        # Rows, and what they mean: to decode those of a large cluster again and again would take most of the time.
        self._decoded: tuple[list[Row], Value] | None = None

    @classmethod
    def create(cls: type[_Self], root: StorageRoot, *owner: int | str) -> _Self:
        """Makes the table without rows. Raises InconsistentClusterIdException if it is there."""
        return cls(StateTable.create(cls.folder(root, *owner), cls.TABLE))

    @classmethod
    def open(cls: type[_Self], root: StorageRoot, *owner: int | str) -> _Self:
        """Opens the table of a formatted root. Raises InconsistentClusterIdException if there is none."""
        return cls(StateTable.open(cls.folder(root, *owner), cls.TABLE))

    @classmethod
    def folder(cls, root: StorageRoot, *owner: int | str) -> StorageRoot:
        """Where the table lies. `owner`: the broker or group, if each has a table of its own in the cluster's root."""
        return root.child(cls.TABLE.name, *map(str, owner))

    @property
    def version(self) -> int:
        """The version of the table that was last read."""
        return self._table.version

    @property
    def _value(self) -> Value:
        """The meaning of the rows as last read: the same object as long as the rows are the same."""
        rows, decoded = self._table.rows, self._decoded
        if decoded is None or decoded[0] is not rows:
            self._decoded = decoded = rows, self._decode(rows)
        return decoded[1]

    def _decode(self, rows: list[Row]) -> Value:
        raise TypeError(f"{type(self).__name__} does not decode its rows")

    @property
    def looked_at(self) -> float:
        """The monotonic time at which the look began that found the rows to be the newest. Ask for it before the rows:
        another thread may refresh the table in between."""
        return self._table.looked_at

    def refresh(self) -> bool:
        """Reads the table again if it has moved; tells whether it had."""
        return self._table.refresh()

    def poll(self, age: float = LONGEST_SECONDS) -> bool:
        """Like `refresh`, but in an object store it may take a look of this process, at most `age` seconds old; the
        more happens, the younger."""
        return self._table.poll(age)

    def watch(self, age: float) -> bool:
        """Like `poll`, where it does not count how much happens."""
        return self._table.watch(age)

    def maintain(self) -> None:
        """Keeps opening cheap; for the table's owner (the active controller, or the broker), now and then."""
        self._table.maintain()


class ClientTable(TypedTable[Value]):
    """A table that clients write, so that the active controller reads it before it maintains it."""

    def maintain(self) -> None:
        """Reads the table and keeps opening cheap; for the active controller, now and then."""
        self.watch(_MAINTENANCE_SECONDS)
        super().maintain()


class ControlledTable(TypedTable[Value]):
    """A table that the active controller writes: the claim of a newer controller fences older ones. [CE-04, CE-05]"""

    def claim(self, controller_epoch: int) -> None:
        """Makes a controller the only one that may write here. Raises ControllerMovedException if a newer one has."""

        def change(rows: list[Row]) -> list[Row] | None:
            self._check_claim(controller_epoch)
            return None if self._table.transaction_version(_CONTROLLER_EPOCH) == controller_epoch else rows

        self._table.recover()
        cause = {"who": "controller", "why": "claim", "controller_epoch": controller_epoch}
        self._table.update(cause, change, {_CONTROLLER_EPOCH: controller_epoch})

    def _check_claim(self, controller_epoch: int | None) -> None:
        """Raises ControllerMovedException if the table, as last read, is claimed by a newer controller."""
        claimed = self._table.transaction_version(_CONTROLLER_EPOCH)
        if controller_epoch is not None and claimed is not None and claimed > controller_epoch:
            raise ControllerMovedException(
                f"{self.TABLE.name}: controller epoch {controller_epoch} is over: epoch {claimed} has claimed the table"
            )
