"""The registrations of all brokers, each from a table of its own: one that is broken hides no other."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lakelog.replication.errors import CorruptRecordException, InconsistentClusterRootException, LakelogException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable, broker_ids

logger = logging.getLogger(__name__)

_NUMBERS = ("broker_id", "broker_epoch", "metadata_version", "log_version")


class BrokerDirectory:
    """What the brokers of a cluster say of themselves, as one process has last read it. Kafka: `/brokers/ids`."""

    def __init__(self, cluster: StorageRoot) -> None:
        self._cluster = cluster
        self._tables: dict[int, BrokerTable] = {}
        self._registrations: dict[int, BrokerRegistration] = {}
        self._unreadable: dict[int, str] = {}

    @property
    def registrations(self) -> Mapping[int, BrokerRegistration]:
        """The registrations as last read, by broker id."""
        return dict(sorted(self._registrations.items()))

    def refresh(self, age: float | None = None) -> None:
        """Reads every registration again that has moved. A poll gives an `age`, as for `TypedTable.watch`, and in an
        object store this process looks for new brokers every 5 s, and every 15 s where nothing happens.

        A table that cannot be read says nothing new: its broker counts as dead once its heartbeat has stood still for
        long enough, as any other. Raises KafkaStorageException where none can be read: it is the store then, and
        InconsistentClusterRootException.
        """
        errors: dict[int, LakelogException] = {}
        there = broker_ids(self._cluster, 0.0 if age is None else LONGEST_SECONDS)
        if self._cluster.guard is not None and not self._tables.keys() <= set(there):
            self._cluster.guard.check()
        for broker_id in there:
            try:
                self._refresh(broker_id, age)
            except InconsistentClusterRootException:
                raise
            except LakelogException as error:
                errors[broker_id] = error
        of_the_store = [error for error in errors.values() if not isinstance(error, CorruptRecordException)]
        if of_the_store and len(errors) == len(there):
            raise of_the_store[0]
        self._note_unreadable({broker_id: str(error) for broker_id, error in errors.items()})

    def _refresh(self, broker_id: int, age: float | None) -> None:
        table = self._tables.get(broker_id)
        if table is not None:
            table.refresh() if age is None else table.watch(age)
        else:
            table = BrokerTable.open_if_registered(self._cluster, broker_id)
        registration = None if table is None else _registration(table, broker_id)
        if table is not None and registration is not None:
            self._tables[broker_id], self._registrations[broker_id] = table, registration

    def _note_unreadable(self, unreadable: dict[int, str]) -> None:
        """Logs each error once: it is met with every look."""
        for broker_id, error in unreadable.items():
            if self._unreadable.get(broker_id) != error:
                logger.warning("the registration of broker %d cannot be read: %s", broker_id, error)
        self._unreadable = unreadable


def _registration(table: BrokerTable, broker_id: int) -> BrokerRegistration | None:
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
    """What is wrong. Raises ValueError or AttributeError for partitions that are none."""
    numbers = {name: getattr(found, name) for name in _NUMBERS}
    wrong = [f"{name} is {value!r}, no integer" for name, value in numbers.items() if type(value) is not int]
    if not wrong and found.broker_id != broker_id:
        wrong = [f"it is of broker {found.broker_id}"]
    _ = found.offline
    return wrong[0] if wrong else None
