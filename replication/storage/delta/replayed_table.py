"""A handle on a table of a local disk that is made of the table's commits alone.

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

from deltalake import Schema

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.checkpoint import HINT
from lakelog.replication.storage.delta.commit import AddedFile, Commit
from lakelog.replication.storage.delta.commit_format import ENGINE, commit_name, is_commit, read_commit
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot, check_no_fork
from lakelog.replication.storage.delta.table_handle import TableHandle, add_actions


@dataclass(frozen=True)
class _Protocol:
    min_reader_version: int
    min_writer_version: int
    writer_features: Sequence[str] | None


@dataclass(frozen=True)
class _Metadata:
    id: str


class ReplayedTable:
    """A table at the version of the last of its commits, which begin with the one that has made it: see `TableHandle`.
    delta-rs opens that version for what a log seldom asks for."""

    def __init__(self, root: StorageRoot, commits: Sequence[Commit], made: Mapping[str, Mapping[str, Any]]) -> None:
        protocol = made["protocol"]
        self._root, self._version = root, commits[-1].version
        self._metadata = _Metadata(str(made["metaData"]["id"]))
        self._protocol = _Protocol(
            int(protocol["minReaderVersion"]), int(protocol["minWriterVersion"]), protocol.get("writerFeatures")
        )
        self._files: dict[str, AddedFile] = {}
        self._txns: dict[str, int] = {}
        for commit in commits:
            for file in commit.removes:
                self._files.pop(file.name, None)
            self._files.update({file.name: AddedFile(file.name, file.size) for file in commit.adds})
            self._txns.update(commit.txns)

    def version(self) -> int:
        """The version of the last commit."""
        return self._version

    def metadata(self) -> _Metadata:
        """The identity of the table."""
        return self._metadata

    def protocol(self) -> _Protocol:
        """The versions of Delta's protocol that readers and writers of the table must know."""
        return self._protocol

    def files(self) -> list[AddedFile]:
        """The data files of the version, in no order, without their statistics."""
        return list(self._files.values())

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed; None if it never did. It reads nothing."""
        return self._txns.get(app_id)

    def schema(self) -> Schema:
        """The table's columns. It opens the table."""
        return self._opened().schema()

    def get_add_actions(self, flatten: bool = False) -> Any:
        """As `TableHandle.get_add_actions`. It opens the table."""
        return self._opened().get_add_actions(flatten)

    def create_checkpoint(self) -> None:
        """As `TableHandle.create_checkpoint`. It opens the table."""
        self._opened().create_checkpoint()

    def cleanup_metadata(self) -> None:
        """Does nothing: there was no checkpoint, without which all commits are needed."""

    def _opened(self) -> TableHandle:
        return self._root.open_table(self._version)


def replayed(root: StorageRoot) -> tuple[ReplayedTable, Sequence[Commit]] | None:
    """The table at its newest version, and its commits in order; None where delta-rs must open it: in an object store,
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
    return ReplayedTable(root, commits, made), commits


def newest_handle(root: StorageRoot) -> TableHandle:
    """A handle on the newest version of a table: `replayed`, or else that of `StorageRoot.open_table`, which says what
    it raises."""
    known = replayed(root)
    return root.open_table() if known is None else known[0]


def files_of(handle: TableHandle) -> list[AddedFile]:
    """The data files of a handle's version, in no order, without their statistics."""
    if isinstance(handle, ReplayedTable):
        return handle.files()
    actions = add_actions(handle)
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    return [AddedFile(path, size) for path, size in zip(paths, sizes, strict=True)]


def _made(root: StorageRoot) -> Mapping[str, Mapping[str, Any]] | None:
    """The actions of the first commit by their kind, if it makes a table and does no more."""
    found: dict[str, Mapping[str, Any]] = {}
    for line in filter(bytes.strip, root.read(commit_name(0)).splitlines()):
        found.update(json.loads(line))
    return found if found.keys() == {"commitInfo", "protocol", "metaData"} else None
