"""The identity of a broker's registered log, and the check whether the log found later is the same. [LI-04, BC-01]

A table id and a version are not enough: a log that lost its last commits keeps its id, and later appends reuse the lost
versions. So the identity also has the unique id of one commit.
"""

from __future__ import annotations

from lakelog.replication.protocol.broker_registration import LogIdentity
from lakelog.replication.storage.delta.checkpoint import newest_checkpoint
from lakelog.replication.storage.delta.commit import NONCE
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog


def identify(log: ReplicaLog) -> LogIdentity:
    """The identity of the log as last replayed. Raises KafkaStorageException."""
    version = log.current().version
    return LogIdentity(log.table_id, version, _commit_id(log.root, version) or "")


def continues(log: ReplicaLog, known: LogIdentity) -> bool:
    """Whether the log, as last replayed, still has everything that it had under that identity.

    Producers may have appended to it since. If the commit was cleaned up, a checkpoint has its content; only the log's
    own broker writes checkpoints. A broker that uses an older cluster root does so, too, in a root that was restored
    from before a recovery. Raises KafkaStorageException.
    """
    if log.is_of_older_generation or log.table_id != known.table_id or log.current().version < known.version:
        return False
    found = _commit_id(log.root, known.version)
    if found is None:
        return newest_checkpoint(log.root) >= known.version
    return known.commit in ("", found)


def _commit_id(root: StorageRoot, version: int) -> str | None:
    """The unique id of a commit, "" if it has none, None if it does not exist."""
    try:
        return str(read_commit(root, version).info.get(NONCE, ""))
    except FileNotFoundError:
        return None
