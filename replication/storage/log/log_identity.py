"""Which log a broker has registered, and whether one that is found there later is the same. [LI-04, BC-01]

A table id and a version are not enough: a log whose last commits were lost keeps its id, and whoever appends to it next
uses their versions again. So one commit is named by its unique id too.
"""

from __future__ import annotations

from lakelog.replication.protocol.broker_registration import LogIdentity
from lakelog.replication.storage.delta.commit_reader import read_commit
from lakelog.replication.storage.delta.delta_log import NONCE
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog


def identify(log: ReplicaLog) -> LogIdentity:
    """The log as it was last replayed. Raises KafkaStorageException."""
    version = log.current().version
    return LogIdentity(log.table_id, version, _commit_id(log.root, version) or "")


def continues(log: ReplicaLog, known: LogIdentity) -> bool:
    """Whether the log, as last replayed, has all that it had when it was known under that identity.

    Producers may have appended to it since. The commit may have been cleaned up since: then a checkpoint has what it
    did, which none but the log's own broker writes. Raises KafkaStorageException.
    """
    if log.table_id != known.table_id or log.current().version < known.version:
        return False
    found = _commit_id(log.root, known.version)
    if found is None:
        return _last_checkpoint(log.root) >= known.version
    return known.commit in ("", found)


def _commit_id(root: StorageRoot, version: int) -> str | None:
    """The unique id of a commit, "" for one that has none, None if it is gone."""
    try:
        return str(read_commit(root, version).info.get(NONCE, ""))
    except FileNotFoundError:
        return None


def _last_checkpoint(root: StorageRoot) -> int:
    names = root.child("_delta_log").list()
    return max((int(name[:20]) for name in names if name[:20].isdigit() and ".checkpoint" in name), default=-1)
