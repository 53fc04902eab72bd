"""Tables for the contract of their handles: created, filled, aged and read in the same way on disk and in memory."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest
from deltalake import CommitProperties, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from lakelog.replication.storage.delta.commit_reader import commit_name, is_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import TableHandle, add_actions
from lakelog.schemas.table import ARROW_TYPES

ARROW = pa.schema([pa.field(f"c{i}", t, nullable=i > 0) for i, t in enumerate(ARROW_TYPES.values())])
SCHEMA = Schema.from_arrow(ARROW)
BY_TYPE = {name: f"c{i}" for i, name in enumerate(ARROW_TYPES)}
HOUR = 3600
AN_HOUR = {"delta.logRetentionDuration": "interval 1 hours"}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def create(root, configuration=None) -> TableHandle:
    root.create_folder()
    return root.create_table(SCHEMA, "name", "description", configuration or AN_HOUR)


def add(name, size=1, stats="{}", data_change=True):
    return AddAction(name, size, {}, 1700000000123, data_change, stats)


def remove(name, size=1, data_change=True):
    return RemoveAction(name, data_change, 1700000000456, size, {})


def commit(handle, *actions, mode="append", txns=None, cause=None):
    properties = CommitProperties(
        custom_metadata=cause or {},
        max_commit_retries=0,
        app_transactions=[Transaction(app_id, version) for app_id, version in (txns or {}).items()],
    )
    handle.create_write_transaction(
        list(actions), mode, SCHEMA, commit_properties=properties, post_commithook_properties=_NO_HOOKS
    )


def go_on(handle, *numbers):
    """Makes commits that each add a file `f<number>` and have the number as the `txn` of `app`."""
    for number in numbers:
        commit(handle, add(f"f{number}", number), txns={"app": number})
        handle.update_incremental()
    return handle


def filled(root, commits, configuration=None):
    return go_on(create(root, configuration), *range(1, commits + 1))


def lose(root, *versions):
    for version in versions:
        assert root.exists(commit_name(version))
        root.delete(commit_name(version))


def put(root, version, content):
    """Writes a commit with any content, also in the place of another one."""
    text = content if isinstance(content, bytes) else "\n".join(map(json.dumps, content)).encode()
    root.child("_delta_log").write(commit_name(version).rpartition("/")[2], text)


def facts(handle):
    """The version, the files, and the txns of `app` and of an unknown app."""
    version, names = seen(handle)
    return version, names, handle.transaction_version("app"), handle.transaction_version("unknown")


def stays(handle, error=None):
    """Checks that the handle fails to move, and stays at its version."""
    before = seen(handle)
    with pytest.raises(DeltaError, match=error):
        handle.update_incremental()
    assert seen(handle) == before
    return True


def moved(handle):
    """The facts of the handle after a move."""
    handle.update_incremental()
    return facts(handle)


def seen(handle):
    """Version and files."""
    return handle.version(), add_actions(handle)["path"].to_pylist()


def of(version):
    """The expected `facts` at a version of a table made by `filled`."""
    return version, names(version), version or None, None


def log_of(table):
    """The commits and checkpoints that are there."""
    found = [name for name in table.child("_delta_log").list() if name[:20].isdigit()]
    return [(int(name[:20]), "commit" if is_commit(name) else "checkpoint") for name in found]


def commits(*versions):
    """The expected `log_of` for these commits."""
    return [(version, "commit") for version in versions]


def names(number):
    """The files that `go_on` has added up to this number, the newest first."""
    return [f"f{n}" for n in range(number, 0, -1)]


@dataclass
class Place:
    """A table's place, and a function that makes a file of its log older, by so many seconds."""

    root: StorageRoot
    age: Callable[[str, float], None]

    def age_commits(self, *versions, seconds=2 * HOUR):
        for version in versions:
            self.age(commit_name(version), seconds)


def on_disk(folder):
    root = StorageRoot.of(folder)

    def age(name, seconds):
        then = time.time() - seconds
        os.utime(root.path(name), (then, then))

    return Place(root, age)


def in_memory(store):
    root = StorageRoot.of(f"{store.uri}/table")

    def age(name, seconds):
        folder, _, file = name.rpartition("/")
        now, store.wall_clock = store.wall_clock, lambda: time.time() - seconds
        root.child(folder).write(file, root.read(name))
        store.wall_clock = now

    return Place(root, age)
