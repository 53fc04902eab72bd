"""What Lakelog asks of a handle on one Delta table: delta-rs's `DeltaTable` is one, `storage.memory` has another."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
from deltalake import CommitProperties, PostCommitHookProperties, Schema
from deltalake.transaction import AddAction, RemoveAction


class TableMetadata(Protocol):
    """Who a table is: one that was made again has another id."""

    @property
    def id(self) -> object:
        """Delta's id of the table."""


class TableHandle(Protocol):
    """A table at one version, until it is moved on. Each method raises DeltaError or OSError, as delta-rs does; the
    same tests hold both implementations to what is said here."""

    def version(self) -> int:
        """The version that was read."""

    def schema(self) -> Schema:
        """The table's columns."""

    def metadata(self) -> TableMetadata:
        """Who the table is."""

    def transaction_version(self, app_id: str) -> int | None:
        """The version that `app_id` last committed, up to the version that was read. It is looked for in the log each
        time, the newest commit first. Raises where a commit on the way is gone: a handle on a checkpoint needs none."""

    def update_incremental(self) -> None:
        """Moves on to the newest version, by way of a checkpoint if there is a newer one. An empty commit counts as one
        that has changed nothing, and a log where all is gone as one with no news. Raises where a commit is torn or
        missing, and where the version that was read is gone and older ones are there: then it stays where it was."""

    def get_add_actions(self, flatten: bool = False) -> Any:
        """The data files of the version as an Arrow table, those of the newest commit first, paths in URLs' escapes;
        with `flatten`, statistics as columns `min.<name>` …, which are there even if no file has any."""

    def create_checkpoint(self) -> None:
        """Writes all that the version says into one file. Raises where the log does not lead to that version."""

    def cleanup_metadata(self) -> None:
        """Deletes what lies before the last checkpoint that all commits within the table's retention, and the version
        that was read, can be read from. One young commit before the first checkpoint keeps all of them."""

    def create_write_transaction(
        self, actions: list[AddAction | RemoveAction], mode: str, schema: Schema, *,
        commit_properties: CommitProperties, post_commithook_properties: PostCommitHookProperties,
    ) -> None:  # fmt: skip
        """Commits the version after the one that was read; the handle stays where it was. `overwrite` removes all files
        of that version. Raises where the next version is there already, or the one that was read is not; ValueError for
        actions that contradict each other. A commit whose statistics are no JSON has landed when it raises."""


def add_actions(handle: TableHandle, flatten: bool = False) -> pa.Table:
    """The data files of a handle's version, as pyarrow has tables."""
    return pa.table(handle.get_add_actions(flatten))
