"""Makes and opens Delta tables with delta-rs, and turns its errors into Lakelog's."""

from __future__ import annotations

from deltalake import Field, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from lakelog.replication.errors import InconsistentClusterIdException, KafkaStorageException
from lakelog.replication.storage.delta.commit_reader import check_commits
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.delta.table_handle import TableHandle
from lakelog.schemas import Table

# Commits follow these versions of Delta's protocol and no later ones, whose features would change what a commit means.
READER_VERSION, WRITER_VERSION = 1, 2


def create_table(root: StorageRoot, table: Table) -> TableHandle:
    """Creates an empty table. Raises InconsistentClusterIdException if one exists, KafkaStorageException."""
    root.create_folder()
    described = zip(Schema.from_arrow(table.arrow).fields, table.columns, strict=True)
    columns = [Field(f.name, f.type, nullable=f.nullable, metadata={"comment": c.comment}) for f, c in described]
    configuration = {"delta.logRetentionDuration": table.log_retention, "delta.checkpointInterval": "1000000"}
    try:
        return root.create_table(Schema(columns), table.name, table.description, configuration)
    except DeltaError as error:
        raise InconsistentClusterIdException(f"{root.uri}: a table {table.name} exists already") from error
    except OSError as error:
        raise KafkaStorageException(f"{root.uri}: cannot be written: {reason(error)}") from error


def open_table(root: StorageRoot) -> TableHandle:
    """Opens an existing table at its newest version.

    Raises InconsistentClusterIdException if no table exists, KafkaStorageException if the store does not say, or if
    another tool has raised the table's protocol.
    """
    try:
        found = root.open_table()
    except TableNotFoundError as error:  # delta-rs raises this for an unreadable folder and for a file, too
        root.child("_delta_log").list()
        raise InconsistentClusterIdException(f"{root.uri}: there is no Lakelog table") from error
    except (DeltaError, OSError) as error:
        check_commits(root)
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error
    _check_protocol(root, found)
    return found


def reopen_table(root: StorageRoot, version: int | None = None) -> TableHandle:
    """Opens a table that was there before, at a version or the newest one. Raises KafkaStorageException."""
    try:
        found = root.open_table(version)
    except (DeltaError, OSError) as error:
        check_commits(root)
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error
    _check_protocol(root, found)
    return found


def transaction_of(root: StorageRoot, handle: TableHandle, app_id: str) -> int | None:
    """The version that `app_id` last committed, None if it never did. It may read the table. Raises
    KafkaStorageException."""
    try:
        return handle.transaction_version(app_id)
    except (DeltaError, OSError) as error:
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error


def _check_protocol(root: StorageRoot, handle: TableHandle) -> None:
    found = handle.protocol()
    if found.min_reader_version > READER_VERSION or found.min_writer_version > WRITER_VERSION:
        raise KafkaStorageException(
            f"{root.uri}: another tool has raised the table's protocol to reader {found.min_reader_version} and writer "
            f"{found.min_writer_version}: Lakelog reads and writes {READER_VERSION} and {WRITER_VERSION}; give the "
            f"table's owner an empty root, which the other replicas fill"
        )
