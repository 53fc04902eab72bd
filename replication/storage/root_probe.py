"""Checks whether a broker can read and write its root now, after an error has made that doubtful. [OL-02]"""

from __future__ import annotations

import time

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import check_commits, last_version
from lakelog.replication.storage.delta.log_recovery import recover_log
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_identity import check_identity, is_formatted
from lakelog.schemas import LOG, REPLICAS

_REMOTE_SECONDS = 60.0
_NAME, _CONTENT = "storage-probe", b"written to find out whether this root can be written\n"


def prepare_root(cluster: Cluster, broker_id: int, uri: str) -> None:
    """Formats a broker's root if it is empty, before the broker starts.

    A broker that has registered before also starts if its root does not work, and publishes that in its row. Raises
    InconsistentClusterIdException if the root holds something else, KafkaStorageException if it cannot be read and
    written.
    """
    try:
        cluster.format_broker(broker_id, uri)
    except KafkaStorageException as error:
        if broker_id not in cluster.refresh_brokers():
            raise KafkaStorageException(f"{uri}: cannot be read and written: {error}") from error


def seems_formatted(root: StorageRoot) -> bool:
    """Whether the root is formatted; False if it cannot be read."""
    try:
        return is_formatted(root)
    except (KafkaStorageException, OSError):
        return False


def recover_root(root: StorageRoot, cluster_id: str, broker_id: int) -> None:
    """After the start of a broker: recovers the tables of its root from a power cut, so that they end with the last
    commit before a lost or torn one. Raises as `probe_root`."""
    if not root.list():
        return
    check_identity(root, cluster_id, broker_id)
    recover_log(root.child(LOG.name), is_after_crash=True)
    recover_log(root.child(REPLICAS.name), is_after_crash=True, has_rows=True)


def probe_root(root: StorageRoot, cluster_id: str, broker_id: int) -> None:
    """Reads the root's owner and the newest commits of its tables, writes a small file and reads it back.

    Raises KafkaStorageException, naming the root, if a step fails or a table ends with a torn commit, and
    InconsistentClusterIdException if the root is another broker's or not formatted. Kafka: `LogDirFailureChannel`.
    """
    if not root.list():  # first, because opening a table could create the missing folder
        raise KafkaStorageException(f"{root.uri}: is empty or missing")
    check_identity(root, cluster_id, broker_id)
    for table in (LOG, REPLICAS):
        _check_table(root.child(table.name))
    root.write(_NAME, _CONTENT)
    if not _reads_back(root):
        raise KafkaStorageException(f"{root.uri}: {_NAME} does not have the content that was written to it")


class RootWatch:
    """A cheap check between two probes: the probe's file is still there and can be written again."""

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self._worked_at = float("-inf")

    def works_as_before(self) -> bool:
        """Whether the root works. In an object store, where a write costs money, it is tried once a minute."""
        now = time.monotonic()
        if not self._root.is_local and now - self._worked_at < _REMOTE_SECONDS:
            return True
        try:
            if not _reads_back(self._root):
                return False
            self._root.write(_NAME, _CONTENT)
        except LakelogException:
            return False
        self._worked_at = now
        return True


def _reads_back(root: StorageRoot) -> bool:
    try:
        return root.read(_NAME) == _CONTENT
    except FileNotFoundError:
        return False


def storage_error(root: StorageRoot, cluster_id: str, broker_id: int) -> str | None:
    """The fault of a root that worked before, as text for the broker's row; None if it works."""
    try:
        probe_root(root, cluster_id, broker_id)
    except LakelogException as error:
        return f"{error.name}: {error}"
    return None


def _check_table(table: StorageRoot) -> None:
    if last_version(table) < 0:
        raise KafkaStorageException(f"{table.uri}: the table is gone")
    check_commits(table, newest=1)
