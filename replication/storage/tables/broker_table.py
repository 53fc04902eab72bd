"""`brokers/<id>`: registrations and heartbeats, a table a broker, so that no two brokers ever contend. [BC-01]

The heartbeat is the version of the table, so that one without news is a commit without a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lakelog.replication.errors import CorruptRecordException, InconsistentClusterIdException, StaleBrokerEpochException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.delta.commit_reader import last_version
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import Row
from lakelog.replication.storage.tables.typed_table import TypedTable
from lakelog.schemas import BROKERS


class BrokerTable(TypedTable[BrokerRegistration | None]):
    """The registration table of one broker."""

    TABLE = BROKERS

    @classmethod
    def open_or_create(cls, cluster: StorageRoot, broker_id: int) -> BrokerTable:
        """The table of this process's own broker, made at its first start.

        Raises CorruptRecordException if the folder holds something else, or a table that cannot be read.
        """
        root = cls.folder(cluster, broker_id)
        if cluster.guard is not None:
            cluster.guard.hold(root)
        if not root.child("_delta_log").list():
            return cls.create(cluster, broker_id)
        try:
            return cls.open(cluster, broker_id)
        except (CorruptRecordException, InconsistentClusterIdException) as error:
            raise CorruptRecordException(
                f"the registration of broker {broker_id} cannot be read: {error}. Move the folder {root.uri} away and "
                "start the broker again: it registers anew, and catches up before it is in sync"
            ) from error

    @classmethod
    def open_if_registered(cls, cluster: StorageRoot, broker_id: int) -> BrokerTable | None:
        """The table of a broker that has registered before; None if it never has."""
        return cls.open(cluster, broker_id) if last_version(cls.folder(cluster, broker_id)) > 0 else None

    @property
    def registration(self) -> BrokerRegistration | None:
        """The registration as last read."""
        found = self._value
        return found and dataclasses.replace(found, heartbeat=self.version)

    def _decode(self, rows: list[Row]) -> BrokerRegistration | None:
        return _registration(rows[0]) if rows else None

    def register(self, build: Callable[[BrokerRegistration | None], BrokerRegistration]) -> BrokerRegistration:
        """Writes what `build` makes of the last registration, and returns it."""
        written: list[BrokerRegistration] = []

        def change(rows: list[Row]) -> list[Row] | None:
            last = self._decode(rows)
            if written and last == written[-1]:
                return None
            written.append(build(last))
            return [_row(written[-1])]

        self._table.recover()
        self._table.update({"who": "broker", "why": "register"}, change)
        return written[-1]

    def update(self, broker_epoch: int, why: str, **changes: object) -> BrokerRegistration:
        """Changes fields of this process's registration, or none. Each call moves the heartbeat.

        Raises StaleBrokerEpochException if a newer process has registered under the id.
        """

        written: list[Row] = []

        def change(rows: list[Row]) -> list[Row] | None:
            found = _registration(rows[0])
            if found.broker_epoch != broker_epoch:
                raise StaleBrokerEpochException(
                    f"broker {found.broker_id}: epoch {broker_epoch} is fenced: "
                    f"a newer process has registered under epoch {found.broker_epoch}"
                )
            written[:] = [{**rows[0], **changes}]
            return list(written)

        version = self._table.update({"who": "broker", "why": why}, change, patience=LONGEST_SECONDS)
        assert version is not None, "a heartbeat is always written"
        return dataclasses.replace(_registration(written[0]), heartbeat=version)


def broker_ids(cluster: StorageRoot, age: float = 0.0) -> list[int]:
    """Ids of all brokers that have ever registered with the cluster; in an object store as this process has seen them
    `age` seconds ago at most."""
    folder, noted = cluster.child(BROKERS.name), cluster.newest_versions
    names = noted.listing(folder.uri, age, folder.list) if noted else folder.list()
    return sorted(int(name) for name in names if name.isdigit())


def _registration(row: Row) -> BrokerRegistration:
    return BrokerRegistration(**{**row, "offline_partitions": tuple(row.get("offline_partitions") or ())})


def _row(registration: BrokerRegistration) -> Row:
    return {name: value for name, value in dataclasses.asdict(registration).items() if name != "heartbeat"}
