"""Keeps the copies of the cluster's small tables in the roots of its brokers, for `lakelog recover`.

The active controller has read most of these tables anyway. It polls the others, `groups` and `producers`, once in some
seconds. A table is copied when it has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import FencedClusterRootException, LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.root_worker import RootWorker
from lakelog.replication.storage.tables.cluster_copy import ClusterCopy, CopySource
from lakelog.replication.storage.tables.state_table import Row
from lakelog.schemas import CLUSTER, CONFIGS, GROUPS, METADATA, PRODUCERS, TOPICS, Table

logger = logging.getLogger(__name__)

LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 10.0  # between two polls; a poll of an object store costs money


class _Snapshot(NamedTuple):
    cluster_id: str
    source: CopySource
    tables: Mapping[str, tuple[Table, int, list[Row]]]  # version and rows, by the name of the table


class _RootCopier:
    """Writes the newest snapshot to the root of one broker. `worker`: once dropped, it writes no more than the snapshot
    that it has begun."""

    def __init__(self, broker_id: int, root: StorageRoot) -> None:
        self.root = root
        self.refusal: FencedClusterRootException | None = None
        self._broker_id = broker_id
        self._broker_epoch = -1
        self._written: dict[str, tuple[CopySource, list[Row]]] = {}
        self._copy: ClusterCopy | None = None
        self.worker = RootWorker(f"the copy of the cluster's tables in {root.uri}", self._close)

    def offer(self, snapshot: _Snapshot, broker_epoch: int) -> None:
        """Begins to write a snapshot to the root of a broker with this epoch."""
        self.worker.begin("tables", lambda: self._write(snapshot, broker_epoch))

    def _close(self) -> None:
        self._copy = None

    def _write(self, snapshot: _Snapshot, broker_epoch: int) -> None:
        try:
            self._write_changes(snapshot, broker_epoch)
        except FencedClusterRootException as error:
            self.refusal = error

    def _write_changes(self, snapshot: _Snapshot, broker_epoch: int) -> None:
        if broker_epoch != self._broker_epoch:  # its root may have been replaced before it registered again
            self._copy, self._broker_epoch = None, broker_epoch
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
        self._errors = ErrorLog(logger, "the copies of the cluster's tables", clock)
        self._seconds = LOCAL_SECONDS if cluster.root.is_local else REMOTE_SECONDS
        self._due_at = 0.0

    def poll(self, controller_epoch: int) -> None:
        """Polls the tables if that is due, and begins to write what has changed, in a thread for each root.

        It logs errors of the store. Raises FencedClusterRootException if a copy is of a newer generation."""
        if self._clock() < self._due_at:
            return
        self._due_at = self._clock() + self._seconds
        for root in self._roots.values():
            if root.refusal is not None:
                raise root.refusal
        try:
            snapshot = self._snapshot(controller_epoch)
            self._errors.worked()
        except (LakelogException, OSError) as error:
            self._errors.failed(error)
            return
        for broker_id, registration in self._cluster.brokers.items():
            known = self._roots.get(broker_id)
            if known is None or known.root.uri != registration.root:
                if known is not None:
                    known.worker.drop()
                known = _RootCopier(broker_id, self._cluster.storage_of(broker_id, registration.root))
                self._roots[broker_id] = known
            known.offer(snapshot, registration.broker_epoch)

    def stop(self, seconds: float = 0.0) -> None:
        """Ends the copies, but for one that is being written: it ends after the tables that it was given, and `stop`
        waits up to `seconds` for that. It does not wait for a root that was late before."""
        roots = list(self._roots.values())
        for root in roots:
            root.worker.drop()
        deadline = time.monotonic() + seconds
        for root in roots:
            root.worker.wait(deadline)
        self._roots.clear()
        self._due_at = 0.0

    def _snapshot(self, epoch: int) -> _Snapshot:
        """The tables, as the controller has read them, or as they were some seconds ago at most."""
        cluster = self._cluster
        for table in (cluster.groups, cluster.producers):
            table.refresh(self._seconds)
        found = {
            TOPICS: cluster.topics.snapshot(),
            CONFIGS: cluster.configs.snapshot(),
            GROUPS: cluster.groups.snapshot(),
            PRODUCERS: cluster.producers.snapshot(),
            METADATA: cluster.metadata.snapshot(),
        }
        tables = {table.name: (table, *seen) for table, seen in found.items()}
        identity = (CLUSTER, 0, [cluster.identity])
        source = CopySource(cluster.uri, cluster.generation, epoch)
        return _Snapshot(cluster.cluster_id, source, {CLUSTER.name: identity, **tables})
