"""The interface of a handle on one Delta table: delta-rs's `DeltaTable` has it, and so has a table in
memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
from deltalake import Schema


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
