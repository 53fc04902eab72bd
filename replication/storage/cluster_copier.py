"""Keeps the copies of the cluster's small tables in the roots of its brokers, for `lakelog recover`.

The active controller has read most of these tables anyway. It polls the others, `groups` and `producers`, once in some
seconds. A table is copied when it has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakelog.replication.errors import ControllerMovedException, FencedClusterRootException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.root_worker import RootWorker
from lakelog.replication.storage.tables.cluster_copy import ClusterCopy, CopySource
from lakelog.replication.storage.tables.state_table import Row
from lakelog.schemas import CLUSTER, CONFIGS, GROUPS, METADATA, PRODUCERS, TOPICS, Table

LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 10.0  # between two polls; a poll of an object store costs money


class _Snapshot(NamedTuple):
    cluster_id: str
    source: CopySource
    tables: Mapping[str, tuple[Table, int, list[Row]]]  # version and rows, by the name of the table


class _RootCopier:
    """Writes the newest snapshot to the root of one broker, as long as the broker keeps its epoch: an operator may
    replace the root while no process of the broker runs."""

    def __init__(self, broker_id: int, broker_epoch: int, root: StorageRoot) -> None:
        self.root = root
        self.broker_epoch = broker_epoch
        self.refusal: ControllerMovedException | FencedClusterRootException | None = None  # of the last snapshot
        self._broker_id = broker_id
        self._written: dict[str, tuple[CopySource, list[Row]]] = {}
        self._copy: ClusterCopy | None = None
        self._worker = RootWorker(f"the copy of the cluster's tables in {root.uri}", self._close)

    def offer(self, snapshot: _Snapshot) -> None:
        """Begins to write a snapshot."""
        self._worker.begin("tables", lambda: self._write(snapshot))

    def stop(self) -> None:
        """Writes no more than the snapshot that it has begun."""
        self._worker.drop()

    def _close(self) -> None:
        self._copy = None

    def _write(self, snapshot: _Snapshot) -> None:
        try:
            self._write_changes(snapshot)
            self.refusal = None
        except (ControllerMovedException, FencedClusterRootException) as error:
            self.refusal = error

    def _write_changes(self, snapshot: _Snapshot) -> None:
        if self._copy is None:  # to make tables would make a root again that has gone
            check_identity(self.root, snapshot.cluster_id, self._broker_id)
            self._copy, self._written = ClusterCopy(self.root), {}
        for name, (table, version, rows) in snapshot.tables.items():
            if self._written.get(name) != (snapshot.source, rows):
                self._copy.write(table, rows, version, snapshot.source)
                self._written[name] = snapshot.source, rows
        self._copy.maintain()


class ClusterCopier:
    """Copies the tables of a cluster while this process has the active controller."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._roots: dict[int, _RootCopier] = {}
        self._seconds = LOCAL_SECONDS if cluster.root.is_local else REMOTE_SECONDS
        self._due_at = 0.0

    def poll(self, controller_epoch: int) -> None:
        """Polls the tables if that is due, and begins to write what has changed, in a thread for each root.

        Raises FencedClusterRootException if a copy is of a newer generation, KafkaStorageException."""
        if self._clock() < self._due_at:
            return
        self._due_at = self._clock() + self._seconds
        for root in self._roots.values():
            if isinstance(root.refusal, FencedClusterRootException):
                raise root.refusal
        snapshot = self._snapshot(controller_epoch)
        for broker_id, registration in self._cluster.brokers.items():
            known, epoch = self._roots.get(broker_id), registration.broker_epoch
            if known is None or (known.root.uri, known.broker_epoch) != (registration.root, epoch):
                if known is not None:
                    known.stop()
                known = _RootCopier(broker_id, epoch, self._cluster.storage_of(broker_id, registration.root))
                self._roots[broker_id] = known
            known.offer(snapshot)

    def stop(self) -> None:
        """Ends the copies, but for one that hangs in its store: it ends after the tables that it was given."""
        for root in self._roots.values():
            root.stop()
        self._roots.clear()
        self._due_at = 0.0

    def _snapshot(self, epoch: int) -> _Snapshot:
        """The tables, as the controller has read them, or as they were some seconds ago at most."""
        cluster = self._cluster
        for table in (cluster.groups, cluster.producers):
            table.watch(self._seconds)
        found = {
            TOPICS: cluster.topics.snapshot(),
            CONFIGS: cluster.configs.snapshot(),
            GROUPS: cluster.groups.snapshot(),
            PRODUCERS: cluster.producers.snapshot(),
            METADATA: cluster.metadata.snapshot(),
        }
        tables = {table.name: (table, *seen) for table, seen in found.items()}
        identity = (CLUSTER, 0, [cluster.identity])
        source = CopySource(cluster.root.uri, cluster.generation, epoch)
        return _Snapshot(cluster.cluster_id, source, {CLUSTER.name: identity, **tables})
