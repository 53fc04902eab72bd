"""Copies of a query's staged batches in the roots of the brokers, from which `lakelog recover` makes its stage again.

A root that is away, refuses or hangs costs a batch a line in the log, and once some seconds: after that no batch waits
for this root, until it has answered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from lakelog.replication.errors import LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.root_worker import LATE_SECONDS, RootWorker
from lakelog.replication.storage.staged_batch import (
    StagedBatch,
    batch_bytes,
    batch_name,
    done_name,
    older_marks,
    staged,
    stages_of,
)

logger = logging.getLogger(__name__)


class StageCopies:
    """The copies of one query's stage in the roots of all brokers."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def put_batch(self, batch: StagedBatch) -> None:
        """Copies a staged batch to all roots at the same time, and waits for those that have answered before."""
        content, brokers, deadline = batch_bytes(batch), self._brokers(), time.monotonic() + LATE_SECONDS
        for broker in brokers:
            broker.begin("batch", self._name, partial(broker.put_batch, self._folder(broker), batch.batch_id, content))
        for broker in brokers:
            broker.wait(deadline)

    def put_done(self, batch_id: int) -> None:
        """Begins to note that a batch is committed, and to delete older ones, where the batch was copied. It waits for
        nothing: the logs say the same until they forget the query's producer."""
        for broker in self._brokers():
            broker.begin("done", self._name, partial(broker.put_done, self._folder(broker), batch_id))

    def clean(self, call: Callable[[StorageRoot], object]) -> None:
        """Begins a call with the folder of all stages in each root."""
        for broker in self._brokers():
            broker.begin("clean", self._name, partial(call, self._stages(broker)))

    def _stages(self, broker: _BrokerRoot) -> StorageRoot:
        return stages_of(broker.root, self._cluster.generation)

    def _folder(self, broker: _BrokerRoot) -> StorageRoot:
        return self._stages(broker).child(self._name)

    def _brokers(self) -> list[_BrokerRoot]:
        try:
            registered = self._cluster.poll_brokers()
        except LakelogException as error:
            registered = self._cluster.brokers
            logger.warning("query %s: its staged batch is copied to the brokers known before: %s", self._name, error)
        return [_broker_root(self._cluster, number, found.root) for number, found in sorted(registered.items())]


class _BrokerRoot:
    """The root of a broker, for all queries of this process. Its worker does the writes."""

    def __init__(self, root: StorageRoot, cluster_id: str, broker_id: int) -> None:
        self.root = root
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._names: dict[StorageRoot, set[str]] = {}  # of the objects in each folder
        self._worker = RootWorker(f"the copies of staged batches in {root.uri}", self._names.clear)

    def begin(self, kind: str, query: str, work: Callable[[], object]) -> None:
        """Begins to write when the writes before have ended. While one hangs, the newest of each kind waits for it."""
        self._worker.begin((kind, query), work)

    def wait(self, deadline: float) -> None:
        """Waits for the writes that have begun, unless the root is late."""
        if not self._worker.wait(deadline):
            uri = self.root.uri
            logger.warning("the copies of staged batches in %s: no answer, so batches do not wait for it", uri)

    def _known(self, folder: StorageRoot) -> set[str]:
        is_new = folder not in self._names
        if is_new or not _is_certain(self.root):  # to write would make a root again that has gone
            check_identity(self.root, self._cluster_id, self._broker_id)
        if is_new:
            folder.create_folder()
            self._names[folder] = set(folder.list())
        return self._names[folder]

    def put_batch(self, folder: StorageRoot, batch_id: int, content: bytes) -> None:
        """Writes a staged batch."""
        names = self._known(folder)
        folder.put(batch_name(batch_id), content)
        names.add(batch_name(batch_id))

    def put_done(self, folder: StorageRoot, batch_id: int) -> None:
        """Notes that a batch is committed, and deletes older ones. Without its batch, the mark would hide that the logs
        may have more."""
        names = self._known(folder)
        if batch_name(batch_id) not in names:
            return
        folder.put(done_name(batch_id), b"")
        names.add(done_name(batch_id))
        for name in older_marks(staged(names), batch_id):
            folder.delete(name)
            names.discard(name)


def _is_certain(root: StorageRoot) -> bool:
    """Whether a write fails where a folder has gone. In an object store it makes the folder again."""
    return root.is_local


_lock = threading.Lock()
_roots: dict[tuple[StorageRoot, str, int], _BrokerRoot] = {}  # of this process, which may run many batches


def _broker_root(cluster: Cluster, broker_id: int, uri: str) -> _BrokerRoot:
    root = cluster.storage_of(broker_id, uri).synced
    key = root, cluster.cluster_id, broker_id
    with _lock:
        if key not in _roots:
            _roots[key] = _BrokerRoot(*key)
        return _roots[key]
