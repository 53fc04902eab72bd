"""Keeps the copies of the cluster's small tables in the roots of its brokers, for `lakelog recover`.

The active controller has read most of these tables anyway. It polls the others, `groups` and `producers`, once in some
seconds. A table is copied when it has changed. Each root has a thread of its own, so that one that hangs keeps no other
from its copies, nor the controller from its work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import ControllerMovedException, FencedClusterRootException, LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import check_identity
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
    """Writes the newest snapshot to the root of one broker, in a thread of its own."""

    def __init__(
        self, broker_id: int, root: StorageRoot, when_fenced: Callable[[FencedClusterRootException], object]
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._root = root
        self._when_fenced = when_fenced
        self.refused: CopySource | None = None  # another controller copies: it did when this source was offered
        self._lock = threading.Condition()
        self._next: _Snapshot | None = None
        self._is_stopped = False
        self._written: dict[str, tuple[CopySource, list[Row]]] = {}
        self._copy: ClusterCopy | None = None
        self._errors = ErrorLog(logger, f"the copy of the cluster's tables in {root.uri}")
        threading.Thread(target=self._run, name=f"cluster-copy-{broker_id}", daemon=True).start()

    @property
    def uri(self) -> str:
        return self._root.uri

    def offer(self, snapshot: _Snapshot) -> None:
        with self._lock:
            self._next = snapshot
            self._lock.notify()

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._lock.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._is_stopped or self._next is not None)
                if self._is_stopped or self._next is None:
                    return
                snapshot, self._next = self._next, None
            try:
                self._write(snapshot)
                self._errors.worked()
            except ControllerMovedException:
                self.refused = snapshot.source
                return
            except FencedClusterRootException as error:
                self._when_fenced(error)
                return
            except (LakelogException, OSError) as error:
                self._errors.failed(error)
                self._copy = None  # the root may be another one when it is back
            except Exception:  # an error of this code must not end the copies
                logger.exception("the copy of the cluster's tables in %s: unexpected error", self._root.uri)
                self._copy = None

    def _write(self, snapshot: _Snapshot) -> None:
        if self._copy is None:  # to make tables would make a root again that has gone
            check_identity(self._root, snapshot.cluster_id, self._broker_id)
            self._copy, self._written = ClusterCopy(self._root), {}
        for name, (table, version, rows) in snapshot.tables.items():
            if self._written.get(name) != (snapshot.source, rows):
                self._copy.write(table, rows, version, snapshot.source)
                self._written[name] = snapshot.source, rows
        self._copy.maintain()


class ClusterCopier:
    """Copies the tables of a cluster as long as `controller_epoch` answers one: that of the active controller of this
    process, else None. Its threads run from `start` to `stop`.

    It calls `when_fenced` with the error if the cluster root was recovered elsewhere.
    """

    def __init__(
        self, cluster: Cluster, controller_epoch: Callable[[], int | None],
        when_fenced: Callable[[FencedClusterRootException], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._controller_epoch = controller_epoch
        self._when_fenced = when_fenced
        self._stopping = threading.Event()
        self._roots: dict[int, _RootCopier] = {}
        self._errors = ErrorLog(logger, "the copies of the cluster's tables")
        self._seconds = LOCAL_SECONDS if cluster.root.is_local else REMOTE_SECONDS

    def start(self) -> None:
        """Begins to copy, in a thread of its own."""
        threading.Thread(target=self._run, name="cluster-copier", daemon=True).start()

    def stop(self) -> None:
        """Ends all threads, but for one that hangs in its store: it ends after the tables that it was given."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self.poll()
                self._errors.worked()
            except (LakelogException, OSError) as error:
                self._errors.failed(error)
            except Exception:  # an error of this code must not end the copies
                logger.exception("the copies of the cluster's tables: unexpected error")
        self._end()

    def poll(self) -> None:
        """Polls the tables, and hands what has changed to the thread of each root."""
        epoch = self._controller_epoch()
        if epoch is None:
            self._end()
            return
        snapshot = self._snapshot(epoch)
        for broker_id, registration in self._cluster.brokers.items():
            known = self._roots.get(broker_id)
            is_over = known is not None and known.refused not in (None, snapshot.source)
            if known is None or known.uri != registration.root or is_over:
                if known is not None:
                    known.stop()
                root = self._cluster.storage_of(broker_id, registration.root)
                known = _RootCopier(broker_id, root, self._when_fenced)
                self._roots[broker_id] = known
            known.offer(snapshot)

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

    def _end(self) -> None:
        for root in self._roots.values():
            root.stop()
        self._roots.clear()
