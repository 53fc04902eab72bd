"""`brokers/<id>`: registrations and heartbeats, one table for each broker, so that no two brokers ever contend; and all
of them as a directory, where a broken one hides no other. The controller writes there only to unregister a broker.
[BC-01]

The heartbeat is the version of the table, so that one without changes is a commit without a file. In a cluster with
several roots that one is a sign of life, see `LifeSigns`, and the heartbeat is the sum of its number and the version.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lakelog.replication.errors import (
    CorruptRecordException,
    InconsistentClusterIdException,
    InconsistentClusterRootException,
    KafkaStorageException,
    LakelogException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import Row, StateTable
from lakelog.schemas import BROKERS, CLUSTER

logger = logging.getLogger(__name__)

UNREGISTERED = ""  # the root in the row of a broker that was unregistered: the row keeps its epoch alone
_NUMBERS = ("broker_id", "broker_epoch", "metadata_version", "log_version")


class BrokerTable(StateTable[BrokerRegistration | None]):
    """The registration table of one broker."""

    TABLE = BROKERS
    _sign = 0  # the number of the sign of life that was last read or written

    @classmethod
    def open_or_create(cls, cluster: StorageRoot, broker_id: int) -> BrokerTable:
        """The table of this process's own broker, made at its first start.

        Raises CorruptRecordException if the folder holds something else, or a table that cannot be read.
        """
        root = cls.folder(cluster, broker_id)
        if cluster.guard is not None:
            cluster.guard.hold(root)
        if not root.is_alone():
            return cls.open_or_create(cluster.current, broker_id)
        if not root.has_table():
            with suppress(InconsistentClusterIdException):  # the cluster gets more roots, and they vote on it by now
                return cls.create(cluster, broker_id)
        try:
            return cls.open(cluster, broker_id)
        except (CorruptRecordException, InconsistentClusterIdException) as error:
            raise CorruptRecordException(
                f"the registration of broker {broker_id} cannot be read: {error}. Move the folder {root.uri} away and "
                "start the broker again: it registers anew, and catches up before it is in sync"
            ) from error

    @classmethod
    def open_if_registered(
        cls, cluster: StorageRoot, broker_id: int, max_staleness: float | None = None
    ) -> BrokerTable | None:  # fmt: skip
        """The table of a broker that has registered before; None if it never has. With several roots the home may lack
        the registration: a poll, which gives a `max_staleness`, finds it within 30 s."""
        root = cls.folder(cluster, broker_id)
        version = last_version(root)
        if version < 0 and max_staleness is None:
            _find_tables(cluster)
            version = last_version(root) if cluster.has_signs else version
        if version <= 0:
            if not cluster.has_signs or version < 0:
                return None
            if max_staleness is not None:
                root.catch_up_now_and_then(version)
                return None
        table = cls.open(cluster, broker_id)
        if table.version <= 0:
            return None
        table.read_sign()
        return table

    def read_sign(self, max_staleness: float | None = None) -> None:
        """Reads the sign of life under the registration as last read, as `LifeSigns.number`. Raises
        KafkaStorageException."""
        if self.root.has_signs and self._value is not None:
            self._sign = self.root.life_sign(self._value.broker_epoch, max_staleness)

    @property
    def registration(self) -> BrokerRegistration | None:
        """The registration as last read; None if the broker was unregistered."""
        found = None if self.is_unregistered else self._value
        return found and dataclasses.replace(found, heartbeat=self.version + self._sign)

    @property
    def fence(self) -> BrokerRegistration | None:
        """As `registration`, and the row that is left of a broker that was unregistered."""
        return self._value

    @property
    def is_unregistered(self) -> bool:
        """Whether an operator has removed the registration, as last read."""
        return self._value is not None and self._value.root == UNREGISTERED

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
            return [broker_row(written[-1])]

        self.recover()
        self.update({"who": "broker", "why": "register"}, change)
        return written[-1]

    def unregister(self, seen: BrokerRegistration, cause: Mapping[str, Any]) -> bool:
        """Removes the registration, if it has not moved since it was `seen`. Returns whether there is none any more.

        The row stays with a higher broker epoch: it fences the process that was registered, should it wake up, and the
        next process of this id begins above it, so that its own log does not fence it.
        """
        self.refresh()
        self.read_sign()
        sign, is_gone = self._sign, False

        def change(rows: list[Row]) -> list[Row] | None:
            nonlocal is_gone
            found = self._decode(rows)
            is_gone = found is None or found.root == UNREGISTERED
            if is_gone or found != seen or self.version + sign != seen.heartbeat:
                return None
            is_gone = True
            epoch = seen.broker_epoch + 1
            return [{**rows[0], "root": UNREGISTERED, "broker_epoch": epoch, "shutting_down": True}]

        self.update(cause, change)
        return is_gone

    def heartbeat(self, broker_epoch: int, why: str, **changes: object) -> BrokerRegistration:
        """Changes fields of this process's registration, or none. Each call moves the heartbeat.

        Raises StaleBrokerEpochException if a newer process has registered under the id.
        """

        found = self._value
        if self.root.has_signs and found is not None and found.broker_epoch == broker_epoch and _has(found, changes):
            self._sign = self.root.show_life(broker_epoch)
            return dataclasses.replace(found, heartbeat=self.version + self._sign)
        written: list[Row] = []

        def change(rows: list[Row]) -> list[Row] | None:
            found = _registration(rows[0])
            if found.broker_epoch != broker_epoch:
                raise fenced(found, broker_epoch)
            written[:] = [{**rows[0], **changes}]
            return list(written)

        version = self.update({"who": "broker", "why": why}, change, noop_staleness=LONGEST_SECONDS)
        assert version is not None, "a heartbeat is always written"
        return dataclasses.replace(_registration(written[0]), heartbeat=version)


def fenced(found: BrokerRegistration, broker_epoch: int) -> StaleBrokerEpochException:
    """The error of a process with this epoch that has found another row of its broker."""
    newer = f"a newer process has registered under epoch {found.broker_epoch}"
    why = "the broker was unregistered" if found.root == UNREGISTERED else newer
    return StaleBrokerEpochException(f"broker {found.broker_id}: epoch {broker_epoch} is fenced: {why}")


def broker_ids(cluster: StorageRoot, max_staleness: float = 0.0) -> list[int]:
    """Ids of all brokers that have ever registered with the cluster; in an object store as this process has seen them
    `max_staleness` seconds ago at most."""
    folder, noted = cluster.child(BROKERS.name), cluster.version_cache
    names = noted.listing(folder.uri, max_staleness, folder.list) if noted else folder.list()
    return sorted(int(name) for name in names if name.isdigit())


def _find_tables(cluster: StorageRoot, max_staleness: float | None = None) -> None:
    """With several roots, makes the tables at the home that others have made; a poll does so each 30 s."""
    if not cluster.has_signs:
        return
    tables = cluster.child(CLUSTER.name)
    if max_staleness is not None:
        tables.catch_up_now_and_then()
        return
    if (version := last_version(tables)) >= 0:
        with suppress(KafkaStorageException):  # what is there is read
            tables.catch_up(version, is_read=True)


def _has(found: BrokerRegistration, changes: Mapping[str, object]) -> bool:
    return all(getattr(found, name) == value for name, value in changes.items())


def _registration(row: Row) -> BrokerRegistration:
    return BrokerRegistration(**{**row, "offline_partitions": tuple(row.get("offline_partitions") or ())})


def broker_row(registration: BrokerRegistration) -> Row:
    """The row of the table for a registration."""
    return {name: value for name, value in dataclasses.asdict(registration).items() if name != "heartbeat"}


class BrokerDirectory:
    """The registrations of a cluster's brokers, as one process has last read them. Kafka: `/brokers/ids`."""

    def __init__(self, cluster: StorageRoot) -> None:
        self._root = cluster
        self._tables: dict[int, BrokerTable] = {}
        self._registrations: dict[int, BrokerRegistration] = {}
        self._unreadable: dict[int, str] = {}
        self._unregistered: set[int] = set()

    @property
    def _cluster(self) -> StorageRoot:
        return self._root.current

    @property
    def registrations(self) -> Mapping[int, BrokerRegistration]:
        """The registrations as last read, by broker id."""
        return dict(sorted(self._registrations.items()))

    @property
    def unregistered(self) -> frozenset[int]:
        """The brokers that were unregistered, as last read."""
        return frozenset(self._unregistered)

    def unregister(self, broker_id: int, cause: Mapping[str, Any]) -> bool:
        """Removes the registration of a broker, if it is as last read: see `BrokerTable.unregister`."""
        table, seen = self._tables.get(broker_id), self._registrations.get(broker_id)
        if table is None or seen is None:
            return broker_id in self._unregistered
        is_gone = table.unregister(seen, cause)
        if is_gone:
            self._note(broker_id, table, None)
        return is_gone

    def refresh(self, max_staleness: float | None = None) -> None:
        """Reads every registration again that has moved. A poll gives a `max_staleness`, as for `StateTable.refresh`,
        and in an object store this process lists new brokers every 5 s, and every 15 s where nothing happens.

        A table that cannot be read has no heartbeats: its broker counts as dead once its heartbeat has stood still for
        long enough, as any other. Raises InconsistentClusterRootException, and KafkaStorageException if no table can be
        read: then the store fails.
        """
        errors: dict[int, LakelogException] = {}
        _find_tables(self._cluster, max_staleness)
        there = broker_ids(self._cluster, 0.0 if max_staleness is None else LONGEST_SECONDS)
        if self._cluster.guard is not None and not self._tables.keys() <= set(there):
            self._cluster.guard.check()
        for broker_id in there:
            try:
                self._refresh(broker_id, max_staleness)
            except InconsistentClusterRootException:
                raise
            except LakelogException as error:
                errors[broker_id] = error
        of_the_store = [error for error in errors.values() if not isinstance(error, CorruptRecordException)]
        if of_the_store and len(errors) == len(there):
            raise of_the_store[0]
        self._note_unreadable({broker_id: str(error) for broker_id, error in errors.items()})

    def _refresh(self, broker_id: int, max_staleness: float | None) -> None:
        table = self._tables.get(broker_id)
        if table is not None:
            table.refresh(max_staleness)
            table.read_sign(max_staleness)
        else:
            table = BrokerTable.open_if_registered(self._cluster, broker_id, max_staleness)
        if table is not None:
            self._note(broker_id, table, _read_registration(table, broker_id))

    def _note(self, broker_id: int, table: BrokerTable, registration: BrokerRegistration | None) -> None:
        if registration is not None:
            self._tables[broker_id], self._registrations[broker_id] = table, registration
            self._unregistered.discard(broker_id)
        elif table.is_unregistered:
            self._tables[broker_id] = table
            self._registrations.pop(broker_id, None)
            self._unregistered.add(broker_id)

    def _note_unreadable(self, unreadable: dict[int, str]) -> None:
        """Logs each error once: it is met with every poll."""
        for broker_id, error in unreadable.items():
            if self._unreadable.get(broker_id) != error:
                logger.warning("the registration of broker %d cannot be read: %s", broker_id, error)
        self._unreadable = unreadable


def _read_registration(table: BrokerTable, broker_id: int) -> BrokerRegistration | None:
    """The registration, if the row is one; its broker may still replace it. Raises CorruptRecordException."""
    try:
        found = table.registration
        wrong = found and _problem(found, broker_id)
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptRecordException(f"the row of broker {broker_id} makes no sense: {error}") from error
    if wrong:
        raise CorruptRecordException(f"the row of broker {broker_id} makes no sense: {wrong}")
    return found


def _problem(found: BrokerRegistration, broker_id: int) -> str | None:
    """The fault of a registration; None without one. Raises ValueError or AttributeError for partitions that are
    none."""
    numbers = {name: getattr(found, name) for name in _NUMBERS}
    wrong = [f"{name} is {value!r}, no integer" for name, value in numbers.items() if type(value) is not int]
    if not wrong and found.broker_id != broker_id:
        wrong = [f"it is of broker {found.broker_id}"]
    _ = found.offline
    return wrong[0] if wrong else None
