"""Opens a table of a local disk by its commits alone.

To open a table, a process reads all commits since the last checkpoint, because they prove that each follows the one
before it. Without a checkpoint these are the whole table. delta-rs takes 2 ms more to say the same, and a verb or a
client opens a dozen tables before it begins. Only a log that Lakelog has written, whole and without a checkpoint, is
read so; delta-rs opens every other one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.checkpoint import HINT
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import ENGINE, commit_name, is_commit, read_commit
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot, check_no_fork
from lakelog.replication.storage.delta.table_handle import Opened


@dataclass(frozen=True)
class _Protocol:
    min_reader_version: int
    min_writer_version: int
    writer_features: Sequence[str] | None


def newest_table(root: StorageRoot) -> Opened:
    """A table at its newest version: `replayed`, or else `StorageRoot.open_newest`, which says what it raises."""
    return replayed(root) or root.open_newest()


def replayed(root: StorageRoot) -> Opened | None:
    """The table at its newest version, with all its commits; None where delta-rs must open it: in an object store,
    from a checkpoint, with a commit that is missing, torn or of another tool, or one that does not follow that before
    it. Raises KafkaStorageException, and IllegalStateException in a fork."""
    check_no_fork()
    if not (isinstance(root, LocalRoot) and root.is_local):
        return None
    names = root.child("_delta_log").list()
    numbered = [name for name in names if name[:20].isdigit()]
    if HINT in names or not numbered or not all(map(is_commit, numbered)):
        return None
    try:
        commits = [read_commit(root, version) for version in range(len(numbered))]
        made = _made(root)
    except (FileNotFoundError, CorruptRecordException, KafkaStorageException):  # delta-rs has other ways, or an error
        return None
    is_ours = commits[0].info.get("engineInfo") == ENGINE and not any(commit.is_foreign for commit in commits[1:])
    is_plain = all(commit.is_plain for commit in commits[1:])
    is_one_history = all(later.follows(commit.unique_id) for commit, later in pairwise(commits))
    if (
        made is None
        or made["metaData"].get("id") != commits[0].table_id
        or not (is_ours and is_plain and is_one_history)
    ):
        return None
    files, txns = dict[str, AddedFile](), dict[str, int]()
    for commit in commits:
        for file in commit.removes:
            files.pop(file.name, None)
        files.update({file.name: AddedFile(file.name, file.size) for file in commit.adds})
        txns.update(commit.txns)
    versions, found = made["protocol"], list(files.values())
    protocol = _Protocol(
        int(versions["minReaderVersion"]), int(versions["minWriterVersion"]), versions.get("writerFeatures")
    )
    return Opened(commits[-1].version, str(made["metaData"]["id"]), protocol, lambda: found, txns, None, commits)


def _made(root: StorageRoot) -> Mapping[str, Mapping[str, Any]] | None:
    """The actions of the first commit by their kind, if it makes a table and does no more."""
    found: dict[str, Mapping[str, Any]] = {}
    for line in filter(bytes.strip, root.read(commit_name(0)).splitlines()):
        found.update(json.loads(line))
    return found if found.keys() == {"commitInfo", "protocol", "metaData"} else None
