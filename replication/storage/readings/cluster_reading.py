"""The rows of one kind of table of a cluster, now or at an earlier time.

What a broker's root does not give is left out, and the row of the broker says why: a dead broker or a root that is out
of reach hides no other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.readings.log_batches import log_batches
from lakelog.replication.storage.readings.metadata_changes import metadata_changes
from lakelog.replication.storage.readings.past_version import commit_times, table_at
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.tables.broker_table import broker_ids
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import BROKERS, METADATA, REPLICAS, STATE_TABLES, Table
from lakelog.schemas.views.readings import BATCHES, METADATA_CHANGES, READINGS

_READERS = 8
OF_BROKERS = (REPLICAS.name, BATCHES.name)
_TABLES = {table.name: table for table in STATE_TABLES}


@dataclass(frozen=True)
class ClusterReading:
    """The tables of a cluster at `as_of`, in seconds since the epoch; None: as they are when they are read."""

    uri: str
    config: Config
    as_of: float | None = None

    def brokers(self) -> list[int]:
        """The brokers that have a registration, also one that cannot be read. Raises as `Cluster.open`."""
        return broker_ids(self._cluster().root)

    def read(self, name: str, broker_id: int | None = None) -> Iterator[pa.Table]:
        """The rows of a table of `READINGS`; of one broker for those `OF_BROKERS`, where a root that cannot be read has
        no rows.

        Raises as `Cluster.open`, and KafkaStorageException if the table cannot be read, or if its history does not
        reach back to `as_of`.
        """
        observed_at, cluster = self._now(), self._cluster()
        if name == METADATA_CHANGES.name:
            yield from self._changes(cluster)
        elif name == BROKERS.name:
            yield self._registrations(cluster, observed_at)
        elif broker_id is None:
            yield self._rows(cluster.root.child(name), name, observed_at)
        else:
            try:
                yield self._of_broker(cluster, name, broker_id, observed_at)
            except LakelogException:
                yield READINGS[name].arrow.empty_table()

    def check(self, name: str) -> None:
        """Raises KafkaStorageException if a table of `READINGS` has no history back to `as_of`. One broker's history is
        enough for the tables OF_BROKERS."""
        if name == BROKERS.name:
            self._check_registrations()
        elif name in OF_BROKERS:
            self._check_any_broker(name)
        else:
            next(iter(self.read(name)), None)

    def _check_registrations(self) -> None:
        """A broker whose table begins later had not registered yet."""
        for broker_id in self.brokers():
            folder = self._cluster().root.child(BROKERS.name, str(broker_id))
            if 0 not in commit_times(folder):
                table_at(folder, self.as_of)

    def _check_any_broker(self, name: str) -> None:
        errors, cluster = [], self._cluster()
        for broker_id in broker_ids(cluster.root):
            try:
                self._of_broker(cluster, name, broker_id, self._now())
                return
            except LakelogException as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _cluster(self) -> Cluster:
        return Cluster.open(self.uri, self.config)

    def _now(self) -> float:
        return time.time() if self.as_of is None else self.as_of

    def _changes(self, cluster: Cluster) -> Iterator[pa.Table]:
        is_there = False
        for table in metadata_changes(cluster.root, self.as_of):
            is_there = True
            yield table
        if not is_there and self.as_of is not None:
            table_at(cluster.root.child(METADATA.name), self.as_of)  # says how far back it reaches

    def _registrations(self, cluster: Cluster, observed_at: float) -> pa.Table:
        """Those that cannot be read are left out: their brokers say nothing."""
        folders = [(broker_id, cluster.root.child(BROKERS.name, str(broker_id))) for broker_id in self.brokers()]
        found = in_threads(lambda folder: self._registration(cluster, folder[1], observed_at), folders, _READERS)
        return pa.concat_tables([READINGS[BROKERS.name].arrow.empty_table(), *found])

    def _registration(self, cluster: Cluster, folder: StorageRoot, observed_at: float) -> pa.Table:
        schema = READINGS[BROKERS.name].arrow
        try:
            rows = _dated(folder, BROKERS, self.as_of, observed_at)
        except LakelogException:
            rows = []
        return pa.Table.from_pylist([{**row, "root_error": self._root_error(cluster, row)} for row in rows], schema)

    def _root_error(self, cluster: Cluster, row: dict[str, Any]) -> str | None:
        try:
            root = cluster.storage_of(row["broker_id"], row["root"])
            check_identity(root, cluster.cluster_id, row["broker_id"])
            table_at(root.child(REPLICAS.name), self.as_of)
        except LakelogException as error:
            return f"{error.name}: {error}"
        return None

    def _of_broker(self, cluster: Cluster, name: str, broker_id: int, observed_at: float) -> pa.Table:
        root = cluster.broker_root(broker_id)
        check_identity(root, cluster.cluster_id, broker_id)
        if name == BATCHES.name:
            return log_batches(root, broker_id, self.as_of, observed_at)
        return self._rows(root.child(name), name, observed_at)

    def _rows(self, root: StorageRoot, name: str, observed_at: float) -> pa.Table:
        return pa.Table.from_pylist(_dated(root, _TABLES[name], self.as_of, observed_at), READINGS[name].arrow)


def _dated(root: StorageRoot, table: Table, at: float | None, observed_at: float) -> list[dict[str, Any]]:
    """The rows of a state table, and when they were committed and read."""
    log, committed_at = table_at(root, at)
    try:
        rows = StateTable(log, table).rows
    except FileNotFoundError as error:
        raise KafkaStorageException(f"{root.uri}: version {log.version} has lost a file: {error}") from error
    when = {
        "table_version": log.version, "committed_at": int(committed_at * 1e6), "observed_at": int(observed_at * 1e6)
    }  # fmt: skip
    return [{**row, **when} for row in rows]
