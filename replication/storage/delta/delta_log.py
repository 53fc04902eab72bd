"""The commits of one Delta table: delta-rs writes them with a strict compare-and-set, and Lakelog reads their actions.

delta-rs checks almost nothing, and by default it silently rebases a stale append. So this module has every rule of a
safe commit: it pins the expected version and retries nothing. It believes a refusal only after it has read version N+1,
and checks a commit again that took longer than a part of the log retention.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltalake import CommitProperties, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from lakelog.replication.errors import CorruptRecordException, InconsistentClusterIdException, KafkaStorageException
from lakelog.replication.storage.delta.commit_reader import (
    ACTIONS,
    AddedFile,
    Commit,
    LogGap,
    check_commits,
    commit_name,
    drop_commits_before,
    read_commit,
)
from lakelog.replication.storage.delta.known_commits import KnownCommits
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.delta.table_handle import TableHandle, add_actions
from lakelog.schemas import Table

# A slower commit may have landed in the gap that a log clean-up left. The retention is at least one hour.
SLOW_COMMIT_SECONDS = 300.0
# A commit of delta-rs gets slower with each commit after the checkpoint that its handle was opened at: after so many
# commits the table's owner writes a checkpoint, and every handle is opened anew.
CHECKPOINT_COMMITS, FRESH_COMMITS = 50, 50
NONCE = "lakelog.commit"
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class CommitConflict(Exception):
    """Another writer committed the expected version: replay and decide again."""


class CommitUnknown(Exception):
    """The outcome of the commit is unknown: look for the rows that it would have written."""


class DeltaLog:
    """A handle on one table. It is not thread-safe: its owner locks."""

    def __init__(self, root: StorageRoot, handle: TableHandle) -> None:
        self.root = root
        self._handle = handle
        self._schema = handle.schema()
        self._checkpointed = self._opened = self.version
        self._commits = KnownCommits(root)
        self._commits.arrive(self.version)

    @classmethod
    def create(cls, root: StorageRoot, table: Table) -> DeltaLog:
        """Creates an empty table. Raises InconsistentClusterIdException if one exists, KafkaStorageException."""
        root.create_folder()
        described = zip(Schema.from_arrow(table.arrow).fields, table.columns, strict=True)
        columns = [Field(f.name, f.type, nullable=f.nullable, metadata={"comment": c.comment}) for f, c in described]
        configuration = {"delta.logRetentionDuration": table.log_retention, "delta.checkpointInterval": "1000000"}
        try:
            handle = root.create_table(Schema(columns), table.name, table.description, configuration)
        except DeltaError as error:
            raise InconsistentClusterIdException(f"{root.uri}: a table {table.name} exists already") from error
        except OSError as error:
            raise KafkaStorageException(f"{root.uri}: cannot be written: {reason(error)}") from error
        return cls(root, handle)

    @classmethod
    def open(cls, root: StorageRoot) -> DeltaLog:
        """A handle on an existing table.

        Raises InconsistentClusterIdException if no table exists, KafkaStorageException if the store does not say.
        """
        try:
            return cls(root, root.open_table())
        except TableNotFoundError as error:  # delta-rs raises this for an unreadable folder and for a file, too
            root.child("_delta_log").list()
            raise InconsistentClusterIdException(f"{root.uri}: there is no Lakelog table") from error
        except (DeltaError, OSError) as error:
            check_commits(root)
            raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error

    @property
    def version(self) -> int:
        """The version that this handle has read."""
        return int(self._handle.version())

    @property
    def table_id(self) -> str:
        """Delta's id of the table. A table that was created again has another id."""
        return str(self._handle.metadata().id)

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed, None if it never did. It survives checkpoints and clean-ups.

        Raises KafkaStorageException, because the first call for an `app_id` reads the table.
        """
        try:
            return self._handle.transaction_version(app_id)
        except (DeltaError, OSError):  # a clean-up deleted commits of the handle; a newer checkpoint has their content
            return self._reopened().transaction_version(app_id)

    def _reopened(self) -> TableHandle:
        try:
            self._handle = self.root.open_table(self.version)
        except (DeltaError, OSError) as error:
            raise KafkaStorageException(f"{self.root.uri}: cannot be read: {reason(error)}") from error
        return self._handle

    def has_moved(self) -> bool:
        """Whether there are commits after `version`, or that version is gone or another commit now, because a clean-up
        has deleted it: two cheap look-ups, no listing."""
        return not self._commits.is_newest(self.version)

    def move(self) -> None:
        """Moves the handle to the newest version. Raises KafkaStorageException if a commit on the way is not whole."""
        try:
            if self.version - self._opened < FRESH_COMMITS and self._commits.is_there(self.version):
                self._handle.update_incremental()
            else:
                self._handle = self.root.open_table()
                self._opened = self.version
        except (DeltaError, OSError) as error:
            check_commits(self.root)
            raise KafkaStorageException(f"{self.root.uri}: cannot be read: {reason(error)}") from error
        self._commits.arrive(self.version)

    def commits_after(self, known: int) -> Iterator[Commit]:
        """The commits after version `known`, up to the handle's version.

        Raises LogGap if a clean-up has deleted one of them, possibly after some were returned, and
        KafkaStorageException if one is torn. A clean-up deletes the oldest commits first, so there is no gap while
        `known` exists. A commit that a slow writer puts into such a gap does not count.
        """
        self._check_is_there(known)
        for version in range(known + 1, self.version + 1):
            try:
                yield read_commit(self.root, version)
            except FileNotFoundError as error:
                raise LogGap(f"{self.root.uri}: version {version} has been cleaned up") from error
            except CorruptRecordException as error:
                self._commits.doubt(self.version)  # delta-rs may have read the torn commit as one with fewer actions
                raise KafkaStorageException(str(error)) from error
        self._check_is_there(known)

    def _check_is_there(self, known: int) -> None:
        if 0 <= known < self.version and not self._commits.is_there(known):
            raise LogGap(f"{self.root.uri}: version {known} has been cleaned up")

    def checkpoint_if_due(self, commits_kept: int | None = None) -> None:
        """Writes a checkpoint after CHECKPOINT_COMMITS commits, and drops commits beyond the log retention.

        Only the table's owner calls this, outside the commit path: who opens a table reads all commits since the
        checkpoint. On a local disk at most `commits_kept` commits stay, since each commit there lists all of them.
        Raises KafkaStorageException.
        """
        if self.version - self._checkpointed < CHECKPOINT_COMMITS:
            return
        try:
            self._handle.create_checkpoint()
            self._handle.cleanup_metadata()
            if commits_kept is not None and self.root.is_local:
                drop_commits_before(self.root, self.version - commits_kept)
        except (DeltaError, OSError) as error:
            raise KafkaStorageException(f"{self.root.uri}: a checkpoint cannot be written: {reason(error)}") from error
        self._checkpointed = self.version

    def active_files(self) -> list[AddedFile]:
        """All data files of the version that the handle has read."""
        actions = self._handle.get_add_actions()
        paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
        return [AddedFile(path, size) for path, size in zip(paths, sizes, strict=True)]

    def statistics(self) -> list[dict[str, Any]]:
        """One row a data file of the handle's version, with the columns `min.<column>` and `max.<column>`."""
        return add_actions(self._handle, flatten=True).to_pylist()

    def commit(
        self,
        cause: Mapping[str, Any],
        adds: Sequence[AddedFile] = (),
        removes: Sequence[AddedFile] = (),
        txns: Mapping[str, int] | None = None,
        *,
        overwrite: bool = False,
        data_change: bool = True,
    ) -> int:
        """Commits version + 1 or nothing, and returns that version; the handle keeps its own version.

        `cause` goes into the commit's metadata: the writer and its reason. `overwrite` drops every file that is not in
        `adds`. Raises CommitConflict if another commit won, CommitUnknown if the outcome cannot be read.
        """
        expected, nonce, started = self.version + 1, uuid.uuid4().hex, time.monotonic()
        counts = {"add": len(adds), "txn": len(txns or {}), **({} if overwrite else {"remove": len(removes)})}
        properties = CommitProperties(
            custom_metadata={**cause, NONCE: nonce, ACTIONS: counts},
            max_commit_retries=0,
            app_transactions=[Transaction(app_id, version) for app_id, version in (txns or {}).items()],
        )
        try:
            self._handle.create_write_transaction(
                _actions(adds, removes, data_change), "overwrite" if overwrite else "append", self._schema,
                commit_properties=properties, post_commithook_properties=_NO_HOOKS,
            )  # fmt: skip
        except (DeltaError, OSError) as error:
            self._settle(expected, nonce, error)
        is_slow = time.monotonic() - started > SLOW_COMMIT_SECONDS
        if is_slow or (self.root.is_local and not self._commits.is_there(expected - 1)):
            self._settle(expected, nonce, TimeoutError("the commit before it may have been cleaned up"))
        self.root.sync_file(commit_name(expected))
        self.root.sync_folder("_delta_log")
        return expected

    def _settle(self, expected: int, nonce: str, error: Exception) -> None:
        """Finds the outcome of a commit that failed or was slow. Returns if it landed, otherwise raises.

        The commit landed if the version has its nonce and the version before still exists. Without that version, the
        commit may have fallen into a gap that a clean-up left. A lost reply of an object store looks like a refusal, so
        every refusal comes here.
        """
        try:
            landed = read_commit(self.root, expected).info.get(NONCE)
            follows = self._commits.is_there(expected - 1)
        except (FileNotFoundError, KafkaStorageException, CorruptRecordException):  # the outcome is unreadable now
            raise CommitUnknown(f"{self.root.uri}: version {expected}: {reason(error)}") from error
        if landed != nonce:
            raise CommitConflict(f"{self.root.uri}: version {expected} is another writer's") from error
        if not follows:
            raise CommitUnknown(f"{self.root.uri}: version {expected - 1} has been cleaned up") from error


def _actions(
    adds: Sequence[AddedFile], removes: Sequence[AddedFile], data_change: bool
) -> list[AddAction | RemoveAction]:
    """The actions of a commit. A commit that removes files only rewrites rows, so its added files bring no new ones.
    Marking them as new would end every Spark stream that ignores deletes."""
    now, has_new_rows = int(time.time() * 1000), data_change and not removes
    removed = [RemoveAction(f.name, data_change, now, f.size, {}) for f in removes]
    return [*removed, *(AddAction(f.name, f.size, {}, now, has_new_rows, f.stats) for f in adds)]
