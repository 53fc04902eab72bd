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
        """The version that `app_id` last committed, up to the version that was read."""

    def update_incremental(self) -> None:
        """Moves on to the newest version. An empty commit counts as one that has changed nothing. Raises where a commit
        is torn or missing, and where the version that was read is gone and older ones are there."""

    def get_add_actions(self, flatten: bool = False) -> Any:
        """The data files of the version as an Arrow table; with `flatten`, statistics as columns `min.<name>` …"""

    def create_checkpoint(self) -> None:
        """Writes all that the version says into one file."""

    def cleanup_metadata(self) -> None:
        """Deletes commits before the last checkpoint that are older than the table's retention."""

    def create_write_transaction(
        self, actions: list[AddAction | RemoveAction], mode: str, schema: Schema, *,
        commit_properties: CommitProperties, post_commithook_properties: PostCommitHookProperties,
    ) -> None:  # fmt: skip
        """Commits the version after the one that was read; the handle stays where it was. `overwrite` removes all files
        of that version. Raises where the next version is there already, or the one that was read is not."""


def add_actions(handle: TableHandle, flatten: bool = False) -> pa.Table:
    """The data files of a handle's version, as pyarrow has tables."""
    return pa.table(handle.get_add_actions(flatten))
