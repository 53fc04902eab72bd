"""The interface of a handle on one Delta table, and what a log takes from it when it opens the table. delta-rs's
`DeltaTable` is such a handle, and so is a table in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from deltalake import Schema

from lakelog.replication.storage.delta.commit import AddedFile, Commit


class TableMetadata(Protocol):
    """The identity of a table."""

    @property
    def id(self) -> object:
        """Delta's id of the table. A table that was created again has another id."""


class TableProtocol(Protocol):
    """Versions of Delta's protocol."""

    @property
    def min_reader_version(self) -> int:
        """The version that a reader must know."""

    @property
    def min_writer_version(self) -> int:
        """The version that a writer must know."""

    @property
    def writer_features(self) -> Sequence[str] | None:
        """The features that a writer must know, by name; None if the versions say all."""


class TableHandle(Protocol):
    """A table at one version. Each method raises DeltaError or OSError, as delta-rs does. The same
    tests check both implementations."""

    def version(self) -> int:
        """The version that was read."""

    def schema(self) -> Schema:
        """The table's columns."""

    def metadata(self) -> TableMetadata:
        """The identity of the table."""

    def protocol(self) -> TableProtocol:
        """The versions of Delta's protocol that readers and writers of the table must know."""

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed, up to the handle's version. It searches the log on each call, the
        newest commit first. Raises if it meets a missing commit; a handle that was opened at a checkpoint does not."""

    def get_add_actions(self, flatten: bool = False) -> Any:
        """The data files of the version as an Arrow table, those of the newest commit first, with the columns `path`
        (URL-escaped), `size_bytes` and `modification_time` (ms since the epoch). With `flatten`, statistics are columns
        such as `min.<name>`, which exist even if no file has statistics."""

    def create_checkpoint(self) -> None:
        """Writes the whole state of the version into one file. Raises if the log does not lead to that version."""

    def cleanup_metadata(self) -> None:
        """Deletes all files before the last checkpoint from which the handle's version and all commits within the
        table's retention can be read. One young commit before the first checkpoint keeps them all."""


def add_actions(handle: TableHandle, flatten: bool = False) -> pa.Table:
    """The data files of a handle's version as a pyarrow table, see `TableHandle.get_add_actions`."""
    return pa.table(handle.get_add_actions(flatten))


class Opened(NamedTuple):
    """A table at the version at which it was opened, and its last commits, which may lead on from that version; None
    if they were not read.

    `files` returns the data files of the version, in no order, without their statistics. Without a `handle`, `txns` are
    all that the table has; with one, those that it need not be asked for.
    """

    version: int
    table_id: str
    protocol: TableProtocol
    files: Callable[[], Sequence[AddedFile]]
    txns: Mapping[str, int]
    handle: TableHandle | None
    tail: Sequence[Commit] | None = None

    @property
    def last_version(self) -> int:
        """The version of the last commit."""
        return max([self.version, *(commit.version for commit in self.tail or ())])


def opened(handle: TableHandle) -> Opened:
    """A table as its handle has opened it."""
    table_id = str(handle.metadata().id)
    return Opened(int(handle.version()), table_id, handle.protocol(), partial(_files_of, handle), {}, handle)


def _files_of(handle: TableHandle) -> list[AddedFile]:
    actions = add_actions(handle)
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    return [AddedFile(path, size) for path, size in zip(paths, sizes, strict=True)]
