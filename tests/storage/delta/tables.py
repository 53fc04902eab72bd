"""Tables for the contracts of logs and handles: made, filled, aged and read in the same way on disk and in memory."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import Schema

from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import commit_name, is_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import add_actions
from lakelog.replication.storage.delta.table_handle import opened as as_opened
from lakelog.replication.storage.delta.table_opening import first_commit
from lakelog.schemas.table import ARROW_TYPES

ARROW = pa.schema([pa.field(f"c{i}", t, nullable=i > 0) for i, t in enumerate(ARROW_TYPES.values())])
SCHEMA = Schema.from_arrow(ARROW)
BY_TYPE = {name: f"c{i}" for i, name in enumerate(ARROW_TYPES)}
HOUR = 3600
AN_HOUR = {"delta.logRetentionDuration": "interval 1 hours"}


def create(root, configuration=None) -> DeltaLog:
    root.create_folder()
    root.create_table(first_commit(SCHEMA, "name", "description", configuration or AN_HOUR))
    return opened(root)


def go_on(log, *numbers):
    """Makes commits that each add a file `f<number>` and have the number as the `txn` of `app`."""
    for number in numbers:
        log.commit({}, [AddedFile(f"f{number}", number)], txns={"app": number})
        log.move()
    return log


def opened(root):
    """The table at its newest version, as a writer has it."""
    return DeltaLog(root, as_opened(root.open_table()))


def at(root, version):
    """The table at a version, as a writer has it that has not moved since."""
    return DeltaLog(root, as_opened(root.open_table(version)))


def checkpoint(log):
    log.root.open_table(log.version).create_checkpoint()


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


def facts(table):
    """The version, the files, and the txns of `app` and of an unknown app, of a handle or a log."""
    version, names = seen(table)
    return version, names, table.transaction_version("app"), table.transaction_version("unknown")


def moved(log):
    """The facts of a log after a move. They are those that delta-rs reads."""
    log.move()
    found = facts(log)
    assert facts(log.root.open_table(log.version)) == found
    return found


def seen(table):
    """Version and files."""
    if isinstance(table, DeltaLog):
        return table.version, sorted(file.name for file in table.active_files())
    return table.version(), sorted(add_actions(table)["path"].to_pylist())


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
    """The files that `go_on` has added up to this number."""
    return sorted(f"f{n}" for n in range(1, number + 1))


@dataclass
class Place:
    """A table's place, and a function that makes a file of its log older, by so many seconds."""

    root: StorageRoot
    max_staleness: Callable[[str, float], None]

    def age_commits(self, *versions, seconds=2 * HOUR):
        for version in versions:
            self.max_staleness(commit_name(version), seconds)


def on_disk(folder):
    root = StorageRoot.of(folder)

    def max_staleness(name, seconds):
        then = time.time() - seconds
        os.utime(root.path(name), (then, then))

    return Place(root, max_staleness)


def in_memory(store):
    root = StorageRoot.of(f"{store.uri}/table")

    def max_staleness(name, seconds):
        folder, _, file = name.rpartition("/")
        now, store.wall_clock = store.wall_clock, lambda: time.time() - seconds
        root.child(folder).write(file, root.read(name))
        store.wall_clock = now

    return Place(root, max_staleness)
