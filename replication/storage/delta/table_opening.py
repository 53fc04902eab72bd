"""Makes Delta tables, opens them with delta-rs, and turns its errors into Lakelog's.

A table has a writer feature that only Lakelog supports. By Delta's protocol a writer that does not support a feature
must not write: it refuses OPTIMIZE, VACUUM, DELETE, RESTORE and ALTER, and readers need not support it.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from deltalake import Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from lakelog.replication.errors import CorruptRecordException, InconsistentClusterIdException, KafkaStorageException
from lakelog.replication.storage.delta.commit_format import ACTIONS, ENGINE, check_commits
from lakelog.replication.storage.delta.log_recovery import find_end, read_tail
from lakelog.replication.storage.delta.replayed_table import newest_table, replayed
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.delta.table_handle import Opened, TableHandle, TableProtocol, add_actions, opened
from lakelog.schemas import Table

logger = logging.getLogger(__name__)

# Commits follow these versions of Delta's protocol and no later ones, whose features would change what a commit means.
READER_VERSION, WRITER_VERSION = 1, 2
# The version of a table with features by name. One that is not in Delta's protocol would stop Spark's readers, too.
FEATURES_VERSION = 7
WRITER_FEATURE = "lakelog"
_FEATURES = "invariants", WRITER_FEATURE  # Spark refuses a table with columns that are not null without `invariants`


def create_table(root: StorageRoot, table: Table) -> Opened:
    """Creates an empty table that no other tool writes, unless the root admits them. Raises
    InconsistentClusterIdException if one exists, KafkaStorageException."""
    root.create_folder()
    described = zip(Schema.from_arrow(table.arrow).fields, table.columns, strict=True)
    columns = [Field(f.name, f.type, nullable=f.nullable, metadata={"comment": c.comment}) for f, c in described]
    configuration = {"delta.logRetentionDuration": table.log_retention, "delta.checkpointInterval": "1000000"}
    if table.transaction_retention and not root.admits_writers:  # older versions do not write them again in time
        configuration["delta.setTransactionRetentionDuration"] = table.transaction_retention
    try:
        features = () if root.admits_writers else _FEATURES
        root.create_table(first_commit(Schema(columns), table.name, table.description, configuration, features))
        return newest_table(root)
    except CommitFailedError as error:
        raise InconsistentClusterIdException(f"{root.uri}: a table {table.name} exists already") from error
    except (DeltaError, OSError) as error:
        raise KafkaStorageException(f"{root.uri}: cannot be written: {reason(error)}") from error


def first_commit(
    schema: Schema, name: str, description: str, configuration: Mapping[str, str], features: Sequence[str] = ()
) -> bytes:
    """The content of the commit that makes a table. `features`: those that a writer must know. delta-rs makes no table
    with a feature that it does not know, and syncs none."""
    now = int(time.time() * 1000)
    writer = {"minWriterVersion": FEATURES_VERSION, "writerFeatures": list(features)}
    protocol = {"minReaderVersion": READER_VERSION, **(writer if features else {"minWriterVersion": WRITER_VERSION})}
    table = {
        "id": str(uuid.uuid4()), "name": name, "description": description,
        "format": {"provider": "parquet", "options": {}}, "schemaString": schema.to_json(),
        "partitionColumns": [], "createdTime": now, "configuration": dict(configuration),
    }  # fmt: skip
    info = {
        "timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}, "engineInfo": ENGINE,
        ACTIONS: {"protocol": 1, "metaData": 1},
    }  # fmt: skip
    actions: Sequence[Mapping[str, object]] = ({"commitInfo": info}, {"protocol": protocol}, {"metaData": table})
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def open_table(root: StorageRoot) -> Opened:
    """Opens an existing table at its newest version.

    Raises InconsistentClusterIdException if no table exists, KafkaStorageException if the store does not say, or if
    another tool has raised the table's protocol.
    """
    if (known := replayed(root)) is not None:
        _check_protocol(root, known.protocol)
        return known
    try:
        found = root.open_newest()
    except TableNotFoundError as error:  # delta-rs raises this for an unreadable folder and for a file, too
        root.child("_delta_log").list()
        raise InconsistentClusterIdException(f"{root.uri}: there is no Lakelog table") from error
    except (DeltaError, OSError) as error:
        return _open_as_far_as_it_goes(root, error)
    return _with_tail(root, found, found.version)


def reopen_table(root: StorageRoot) -> Opened:
    """Opens a table that was there before, at its newest version. Raises KafkaStorageException."""
    try:
        found = root.open_newest()
    except (DeltaError, OSError) as error:
        return _open_as_far_as_it_goes(root, error)
    return _with_tail(root, found, found.version)


def open_version(root: StorageRoot, version: int) -> TableHandle:
    """Opens a table that was there before, at a version. Raises KafkaStorageException."""
    try:
        found = root.open_table(version)
    except (DeltaError, OSError) as error:
        check_commits(root)
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error
    _check_protocol(root, found.protocol())
    return found


def file_statistics(root: StorageRoot, version: int) -> list[dict[str, Any]]:
    """A row for each data file of a version, with the columns `min.<column>` and `max.<column>`. Raises as
    `open_version`."""
    return list(add_actions(open_version(root, version), flatten=True).to_pylist())


def _open_as_far_as_it_goes(root: StorageRoot, error: Exception) -> Opened:
    """Opens a table that delta-rs does not open: below the first hole of its log, or from an older checkpoint."""
    end = find_end(root)
    if end.last < 0 or not (end.torn or end.ghosts or end.gone):
        check_commits(root)
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error
    what = [f"{', '.join(end.torn)}: torn, so it was read from older files"] if end.torn else []
    what += [f"{', '.join(end.gone)}: gone, so it was read from older files"] if end.gone else []
    what += [f"version {end.last + 1} is missing, and what lies behind it does not count"] if end.ghosts else []
    _say_once(f"{root.uri}: opened at version {end.last}: {'; '.join(what)}")
    return _with_tail(root, opened(open_version(root, end.readable)), end.last, end.checkpoint)


@lru_cache(maxsize=1000)
def _say_once(sentence: str) -> None:
    """Logs what each reader of a table finds whenever it opens it, until the owner is back."""
    logger.warning("%s", sentence)


def _with_tail(root: StorageRoot, found: Opened, last: int, checkpoint: int | None = None) -> Opened:
    """Opens an earlier version if a commit was written after another one than that before it."""
    _check_protocol(root, found.protocol)
    try:
        tail = read_tail(root, last, checkpoint, after=found.version)
    except CorruptRecordException as error:
        raise KafkaStorageException(str(error)) from error
    if tail and tail[-1].version < found.version:
        found = opened(open_version(root, tail[-1].version))
    return found._replace(tail=tail)


def transaction_of(root: StorageRoot, handle: TableHandle, app_id: str) -> int | None:
    """The version that `app_id` last committed, None if it never did. It may read the table. Raises
    KafkaStorageException."""
    try:
        return handle.transaction_version(app_id)
    except (DeltaError, OSError) as error:
        raise KafkaStorageException(f"{root.uri}: cannot be read: {reason(error)}") from error


def _check_protocol(root: StorageRoot, found: TableProtocol) -> None:
    is_made_here = found.min_writer_version <= WRITER_VERSION or _is_ours(found.writer_features)
    if found.min_reader_version > READER_VERSION or not is_made_here:
        features = ", ".join(sorted({*(found.writer_features or ())} - {*_FEATURES}))
        raise KafkaStorageException(
            f"{root.uri}: another tool has raised the table's protocol to reader {found.min_reader_version} and writer "
            f"{found.min_writer_version}{f', features {features}' if features else ''}: Lakelog reads and writes "
            f"{READER_VERSION} and {WRITER_VERSION}; give the table's owner an empty root, which the other replicas "
            f"fill"
        )


def _is_ours(features: Collection[str] | None) -> bool:
    """Whether a table has the features that it was made with, and no others, which might change what a commit means."""
    return {*(features or ())} == {*_FEATURES}
