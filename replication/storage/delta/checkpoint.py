"""Checkpoints of tables in object stores, and of tables whose last checkpoint is torn.

delta-rs reads each commit four times for one: 200 requests after 50 commits. So it makes the checkpoint on the local
disk, of one copy of each commit.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from deltalake import DeltaTable

from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.in_threads import in_threads

HINT = "_last_checkpoint"  # a file of a log that names its last checkpoint
_HINT = f"_delta_log/{HINT}"
_CONNECTIONS = 8


def last_checkpoint(root: StorageRoot) -> int:
    """The version of the last checkpoint, -1 without any. Raises ValueError, KeyError, TypeError,
    KafkaStorageException."""
    try:
        return int(json.loads(root.read(_HINT))["version"])
    except FileNotFoundError:
        return -1


def newest_checkpoint(root: StorageRoot) -> int:
    """The version of the newest checkpoint that is there, -1 without any. Raises KafkaStorageException."""
    names = root.child("_delta_log").list()
    return max((int(name[:20]) for name in names if name[:20].isdigit() and ".checkpoint" in name), default=-1)


def checkpoint_name(version: int) -> str:
    """The name of the file that holds the checkpoint of a version, if it is one file."""
    return f"_delta_log/{version:020d}.checkpoint.parquet"


def create_checkpoint(root: StorageRoot, version: int, last: int | None = None) -> None:
    """Writes a checkpoint of one version, made of the `last` checkpoint (default: that of the hint; -1: none) and the
    commits after it.

    Raises FileNotFoundError if one of them is missing, ValueError, KeyError or TypeError if the last checkpoint is a
    newer one or cannot be told, DeltaError if they do not make a table, KafkaStorageException.
    """
    last = last_checkpoint(root) if last is None else last
    if last > version:
        raise ValueError(f"{root.uri}: the last checkpoint is of version {last}, which is after {version}")
    names = [commit_name(commit) for commit in range(last + 1, version + 1)]
    if last >= 0:
        names.append(checkpoint_name(last))
    with tempfile.TemporaryDirectory(prefix="lakelog-checkpoint-") as folder:
        copy = Path(folder)
        (copy / "_delta_log").mkdir()
        in_threads(lambda name: (copy / name).write_bytes(root.read(name)), names, _CONNECTIONS)
        DeltaTable(copy, version).create_checkpoint()
        for name in (checkpoint_name(version), _HINT):  # the second one is a hint at the first for readers
            root.put(name, (copy / name).read_bytes())
