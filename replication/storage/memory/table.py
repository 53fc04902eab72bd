"""A handle on a Delta table in memory. Its commits are a true Delta log, and its errors are delta-rs's.

Its checkpoints have Delta's names but are JSON like the commits, so no other reader can read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
from deltalake import Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from lakelog.replication.storage.delta.commit_format import commit_name, is_commit
from lakelog.replication.storage.memory.snapshot import (
    NOTHING,
    Change,
    Snapshot,
    applied,
    change_of,
    to_checkpoint,
)
from lakelog.replication.storage.memory.store import File, MemoryStore

_CHECKPOINT = ".checkpoint.parquet"
_RETENTION = "delta.logRetentionDuration"
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?\b")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_DEFAULT_RETENTION = 30 * _SECONDS["day"]


def create_table(store: MemoryStore, uri: str, content: bytes) -> MemoryTable:
    """A handle on a new table. Raises CommitFailedError if a table, or a part of its log, exists."""

    def put() -> bool:
        return not _log_files(store, uri) and store.put_if_absent(f"{uri}/{commit_name(0)}", content)

    if not store.faults.commit(uri, put):
        raise CommitFailedError("Generic error: A Delta Lake table already exists at that location.")
    return MemoryTable(store, uri)


def _log_files(store: MemoryStore, uri: str) -> Mapping[str, File]:
    files = store.files(f"{uri}/_delta_log")
    return {n: f for n, f in files.items() if is_commit(n) or (n.endswith(_CHECKPOINT) and n[:20].isdigit())}


class MemoryTable:
    """A table at one version, see `TableHandle`."""

    def __init__(self, store: MemoryStore, uri: str, version: int | None = None) -> None:
        self._store, self._uri = store, uri
        self._snapshot, self._checkpoint = NOTHING, -1
        self._log: list[int] = []  # the versions of the commits that the handle has read after the checkpoint
        store.faults.read(uri)
        checkpoint, commits = self._listed(0, version)
        if checkpoint < 0 and not commits:
            raise TableNotFoundError("Generic delta kernel error: No files in log segment")
        self._begin(checkpoint, commits)
        if not self._snapshot.table:
            raise DeltaError("Kernel error: No table metadata or protocol found in delta log.")
        if version is not None and self.version() != version:
            raise DeltaError(f"LogSegment end version {self.version()} not the same as the specified one {version}")

    def _listed(self, first: int, last: int | None = None) -> tuple[int, list[int]]:
        """The newest checkpoint, -1 if there is none, and the commits after it. Raises DeltaError if one is missing."""
        names = _log_files(self._store, self._uri)
        found = sorted((int(n[:20]), is_commit(n)) for n in names)
        found = [(v, commit) for v, commit in found if v >= first and (last is None or v <= last)]
        checkpoint = max((v for v, commit in found if not commit), default=-1)
        commits = [v for v, commit in found if commit and v > checkpoint]
        _check_follow([checkpoint, *commits] if checkpoint >= 0 else commits)
        return checkpoint, commits

    def _begin(self, checkpoint: int, commits: list[int]) -> None:
        base = NOTHING
        if checkpoint >= 0:
            base = self._made(NOTHING, checkpoint, self._file(_checkpoint_name(checkpoint)))
        self._snapshot, self._checkpoint, self._log = self._replayed(base, commits), checkpoint, commits

    def _replayed(self, found: Snapshot, commits: Sequence[int]) -> Snapshot:
        for version in commits:
            found = self._made(found, version, self._file(commit_name(version)))
        return found

    def _file(self, name: str) -> File:
        found = self._store.find(f"{self._uri}/{name}")
        if found is None:
            raise DeltaError(f"Kernel error: File not found: {self._uri}/{name}")
        return found

    def _made(self, before: Snapshot, version: int, file: File) -> Snapshot:
        """Builds each snapshot once for all handles that have read the same commits."""
        made_of = hash((self._uri, before.made_of, file.stamp))
        known = self._store.parsed.get(made_of)
        if not isinstance(known, Snapshot):
            known = self._store.parsed[made_of] = applied(before, version, made_of, self._change(file))
        return known

    def _change(self, file: File) -> Change:
        known = self._store.parsed.get(file.stamp)
        if not isinstance(known, Change):
            known = self._store.parsed[file.stamp] = change_of(bytes(file.content))
        return known

    def version(self) -> int:
        return self._snapshot.version

    def schema(self) -> Schema:
        return self._snapshot.schema

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(id=self._snapshot.table["id"])

    def protocol(self) -> SimpleNamespace:
        found = self._snapshot.table["protocol"]
        return SimpleNamespace(
            min_reader_version=found["minReaderVersion"], min_writer_version=found["minWriterVersion"],
            writer_features=found.get("writerFeatures"),
        )  # fmt: skip

    def transaction_version(self, app_id: str) -> int | None:
        self._store.faults.read(self._uri)
        names = [commit_name(version) for version in reversed(self._log)]
        for name in [*names, *([_checkpoint_name(self._checkpoint)] if self._checkpoint >= 0 else [])]:
            found = self._change(self._file(name)).transactions
            if app_id in found:
                return found[app_id]
        return None

    def get_add_actions(self, flatten: bool = False) -> pa.Table:
        return self._snapshot.flat_add_actions if flatten else self._snapshot.add_actions

    def create_checkpoint(self) -> None:
        target = f"{self._uri}/{_checkpoint_name(self.version())}"
        content = to_checkpoint(MemoryTable(self._store, self._uri, self.version())._snapshot)
        self._store.faults.write(target, lambda: self._store.put(target, content))

    def cleanup_metadata(self) -> None:
        """Keeps the commits that are younger than the retention, and a checkpoint to read them from."""
        self._store.faults.read(f"{self._uri}/_delta_log")
        oldest = self._store.wall_clock() - _retention(self._snapshot.table["configuration"])
        files = _log_files(self._store, self._uri)
        young = [int(name[:20]) for name, file in files.items() if file.stamp[1] / 1e9 >= oldest]
        read_from = min([self.version(), *young])
        checkpoints = [int(name[:20]) for name in files if not is_commit(name)]
        base = max((v for v in checkpoints if v <= read_from), default=-1)
        for name in sorted(files):
            if int(name[:20]) < base:
                target = f"{self._uri}/_delta_log/{name}"
                self._store.faults.write(target, partial(self._store.delete, target))


def _checkpoint_name(version: int) -> str:
    return f"_delta_log/{version:020d}{_CHECKPOINT}"


def _check_follow(versions: Iterable[int]) -> None:
    for before, after in pairwise(versions):
        if after != before + 1:
            raise DeltaError(f"Expected contiguous commit files, but found gap: {before} to {after}")


def _retention(configuration: Mapping[str, str]) -> int:
    """The retention in seconds; the default if the setting is missing or cannot be read."""
    found = _INTERVAL.match(configuration.get(_RETENTION, ""))
    return int(found[1]) * _SECONDS[found[2]] if found else _DEFAULT_RETENTION
