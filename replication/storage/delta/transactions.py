"""The `txn`s of one table: one by one from delta-rs, or all at once.

delta-rs searches the log anew for each `txn`, so the look-ups of thousands of partitions would take minutes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.checkpoint import checkpoint_name, last_checkpoint
from lakelog.replication.storage.delta.commit_reader import read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot

MANY = 100  # look-ups at one version, after which all `txn`s are read


class Transactions:
    """The `txn`s of a table at the version of its handle. It is not thread-safe: its owner locks."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._version, self._asked = -1, 0
        self._found: dict[str, int] | None = None

    def get(self, app_id: str) -> int | None:
        """The version that `app_id` last committed, None if it never did. Raises as `DeltaLog.transaction_version`."""
        if self._version != self._log.version:
            self._version, self._asked, self._found = self._log.version, 0, None
        self._asked += 1
        if self._asked == MANY:
            self._found = read_transactions(self._log.root, self._version)
        return self._log.transaction_version(app_id) if self._found is None else self._found.get(app_id)


def read_transactions(root: StorageRoot, version: int) -> dict[str, int] | None:
    """All `txn`s of a version of the table at `root`: those of its last checkpoint, and of the commits after it. None
    if a file cannot be read, or the checkpoint is newer: then delta-rs is asked, which knows other ways."""
    try:
        checkpoint = last_checkpoint(root)
        if checkpoint > version:
            return None
        found = {} if checkpoint < 0 else _of_checkpoint(root, checkpoint)
        for later in range(checkpoint + 1, version + 1):
            found.update(read_commit(root, later).txns)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, KafkaStorageException, CorruptRecordException):
        return None
    return found


def _of_checkpoint(root: StorageRoot, version: int) -> dict[str, int]:
    content = root.read_buffer(checkpoint_name(version))
    found = pq.read_table(pa.BufferReader(content), columns=["txn"])["txn"].drop_null().to_pylist()
    return {txn["appId"]: txn["version"] for txn in found}
