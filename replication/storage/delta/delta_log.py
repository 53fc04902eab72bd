"""The commits of one Delta table: strict compare-and-set by delta-rs, and what each commit did, read by hand.

delta-rs checks almost nothing and rebases a stale append silently unless told not to, so every rule of a safe commit
stands here: the expected version is pinned, nothing is retried, a refusal is not believed before version N+1 has been
looked at, and a commit that took longer than a part of the log retention is not believed either.
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

# A commit that was slower may have landed in the hole that a log clean-up has left; retention is an hour at least.
SLOW_COMMIT_SECONDS = 300.0
CHECKPOINT_COMMITS = 100
NONCE = "lakelog.commit"
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class CommitConflict(Exception):
    """Somebody else has committed the expected version: replay, decide again."""


class CommitUnknown(Exception):
    """Whether the commit has landed cannot be told: look for what it would have written."""


class DeltaLog:
    """A handle on one table. Not for use by two threads at once: its owner locks."""

    def __init__(self, root: StorageRoot, handle: TableHandle) -> None:
        self.root = root
        self._handle = handle
        self._schema = handle.schema()
        self._checkpointed = self.version
        self._commits = KnownCommits(root)
        self._commits.arrive(self.version)

    @classmethod
    def create(cls, root: StorageRoot, table: Table) -> DeltaLog:
        """Makes an empty table. Raises InconsistentClusterIdException if there is one."""
        root.create_folder()
        described = zip(Schema.from_arrow(table.arrow).fields, table.columns, strict=True)
        columns = [Field(f.name, f.type, nullable=f.nullable, metadata={"comment": c.comment}) for f, c in described]
        configuration = {"delta.logRetentionDuration": table.log_retention, "delta.checkpointInterval": "1000000"}
        try:
            handle = root.create_table(Schema(columns), table.name, table.description, configuration)
        except DeltaError as error:
            raise InconsistentClusterIdException(f"{root.uri}: a table {table.name} is there already") from error
        except OSError as error:
            raise KafkaStorageException(f"{root.uri}: cannot be written: {reason(error)}") from error
        return cls(root, handle)

    @classmethod
    def open(cls, root: StorageRoot) -> DeltaLog:
        """A handle on an existing table.

        Raises InconsistentClusterIdException if there is none, KafkaStorageException where that cannot be told.
        """
        try:
            return cls(root, root.open_table())
        except TableNotFoundError as error:  # delta-rs says so too of a folder that may not be read, and of a file
            root.child("_delta_log").list()
            raise InconsistentClusterIdException(f"{root.uri}: no Lakelog table is there") from error
        except (DeltaError, OSError) as error:
            check_commits(root)
            raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error

    @property
    def version(self) -> int:
        """The version that this handle has read."""
        return int(self._handle.version())

    @property
    def table_id(self) -> str:
        """Delta's id of the table: a table that was made again has another."""
        return str(self._handle.metadata().id)

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed, None if it never did; it survives checkpoints and clean-up.

        Raises KafkaStorageException: what is asked for the first time is read from the table.
        """
        try:
            return self._handle.transaction_version(app_id)
        except (DeltaError, OSError):  # commits of the handle have been cleaned up; a checkpoint now has what they said
            return self._reopened().transaction_version(app_id)

    def _reopened(self) -> TableHandle:
        try:
            self._handle = self.root.open_table(self.version)
        except (DeltaError, OSError) as error:
            raise KafkaStorageException(f"{self.root.uri}: cannot be read: {reason(error)}") from error
        return self._handle

    def has_moved(self) -> bool:
        """Whether there are commits after `version`: two cheap look-ups, no listing.

        A version that has vanished, or is another one now, was cleaned up, so the table has moved on far.
        """
        return not self._commits.is_newest(self.version)

    def move(self) -> None:
        """Moves the handle to the newest version. Raises KafkaStorageException if that is an empty or torn commit."""
        try:
            if self._commits.is_there(self.version):
                self._handle.update_incremental()
            else:
                self._handle = self.root.open_table()
        except (DeltaError, OSError) as error:
            check_commits(self.root)
            raise KafkaStorageException(f"{self.root.uri}: cannot be read: {reason(error)}") from error
        self._commits.arrive(self.version)

    def commits_after(self, known: int) -> Iterator[Commit]:
        """The commits after version `known`, up to that of the handle.

        Raises LogGap if one of them has been cleaned up, also after some were told. What lies in the hole that a
        clean-up has left is nobody's commit: since the oldest go first, there is no hole as long as `known` is there.
        """
        self._check_is_there(known)
        for version in range(known + 1, self.version + 1):
            try:
                yield read_commit(self.root, version)
            except FileNotFoundError as error:
                raise LogGap(f"{self.root.uri}: version {version} has been cleaned up") from error
            except CorruptRecordException as error:
                self._commits.doubt(self.version)  # delta-rs may have read it, as one that has changed less
                raise KafkaStorageException(str(error)) from error
        self._check_is_there(known)

    def _check_is_there(self, known: int) -> None:
        if 0 <= known < self.version and not self._commits.is_there(known):
            raise LogGap(f"{self.root.uri}: version {known} has been cleaned up")

    def checkpoint_if_due(self, commits_kept: int | None = None) -> None:
        """Writes a checkpoint when enough commits have come since the last one, and drops commits beyond retention.

        Outside the commit path, and by the table's owner alone: to open a table means to read what no checkpoint has.
        `commits_kept`: on a local disk no more are kept, since a commit there lists all that are.
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
        """All data files of the version that the handle has read, with `min.<column>` and `max.<column>` of each."""
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
        """Commits version + 1 or nothing, and returns that version; the handle stays where it was.

        `cause` goes into the commit's metadata: who, and why. `overwrite` drops every file that is not in `adds`.
        Raises CommitConflict when another commit has won, CommitUnknown when it cannot be told.
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
        """Tells what became of a commit that failed or was slow: returns if it has landed after all.

        It has landed if the version holds its nonce and the one before is still there: else a clean-up may have made
        the hole that it fell into. A lost reply of an object store looks like a refusal, so every refusal comes here.
        """
        try:
            landed = read_commit(self.root, expected).info.get(NONCE)
            follows = self._commits.is_there(expected - 1)
        except (FileNotFoundError, KafkaStorageException, CorruptRecordException):  # nothing can be told from it now
            raise CommitUnknown(f"{self.root.uri}: version {expected}: {reason(error)}") from error
        if landed != nonce:
            raise CommitConflict(f"{self.root.uri}: version {expected} is somebody else's") from error
        if not follows:
            raise CommitUnknown(f"{self.root.uri}: version {expected - 1} has been cleaned up") from error


def _actions(
    adds: Sequence[AddedFile], removes: Sequence[AddedFile], data_change: bool
) -> list[AddAction | RemoveAction]:
    """A commit that removes files adds none with new rows: what it adds was in them. To say otherwise would end every
    stream of Spark's that ignores deletes."""
    now, has_new_rows = int(time.time() * 1000), data_change and not removes
    removed = [RemoveAction(f.name, data_change, now, f.size, {}) for f in removes]
    return [*removed, *(AddAction(f.name, f.size, {}, now, has_new_rows, f.stats) for f in adds)]
