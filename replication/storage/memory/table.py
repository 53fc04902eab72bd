"""A handle on a Delta table in memory: the same commits as JSON lines, read by hand, and delta-rs's errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from replication.storage.commit import commit_name, is_commit
from replication.storage.memory.snapshot import NOTHING, Action, Snapshot, applied, lines, to_checkpoint
from replication.storage.memory.store import MemoryStore

_CHECKPOINT = ".checkpoint.parquet"
_RETENTION = "delta.logRetentionDuration"
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def create_table(
    store: MemoryStore, uri: str, schema: Schema, name: str, description: str, configuration: Mapping[str, str]
) -> MemoryTable:
    """A handle on a new table. Raises DeltaError if there is one."""
    now = int(store.wall_clock() * 1000)
    table = {
        "id": str(uuid.uuid4()), "name": name, "description": description, "schemaString": schema.to_json(),
        "partitionColumns": [], "createdTime": now, "configuration": dict(configuration),
    }  # fmt: skip
    content = lines([{"commitInfo": {"timestamp": now, "operation": "CREATE TABLE"}}, {"metaData": table}])
    target = f"{uri}/{commit_name(0)}"
    if not store.faults.commit(uri, lambda: store.put_if_absent(target, content)):
        raise DeltaError(f"A Delta Lake table already exists at {uri}")
    return MemoryTable(store, uri)


class MemoryTable:
    """A table at one version, see `TableHandle`."""

    def __init__(self, store: MemoryStore, uri: str, version: int | None = None) -> None:
        self._store, self._uri = store, uri
        store.faults.read(uri)
        checkpoints = [v for v in self._versions(_CHECKPOINT) if version is None or v <= version]
        base = self._checkpoint(max(checkpoints)) if checkpoints else NOTHING
        commits = [v for v in self._versions() if v > base.version and (version is None or v <= version)]
        if base is NOTHING and not commits:
            raise TableNotFoundError("Generic delta kernel error: No files in log segment")
        self._snapshot = self._replayed(base, commits)
        if version is not None and self._snapshot.version != version:
            raise DeltaError(f"Invalid table version: {version}")

    def _versions(self, suffix: str = ".json") -> list[int]:
        names = self._store.files(f"{self._uri}/_delta_log")
        return sorted(int(n[:20]) for n in names if n.endswith(suffix) and (suffix != ".json" or is_commit(n)))

    def _checkpoint(self, version: int) -> Snapshot:
        file = self._store.files(f"{self._uri}/_delta_log")[f"{version:020d}{_CHECKPOINT}"]
        return self._made(NOTHING, version, file.stamp, bytes(file.content))

    def _replayed(self, base: Snapshot, commits: Sequence[int]) -> Snapshot:
        found = base
        for version in commits:
            if version != found.version + 1:
                raise DeltaError(f"Expected contiguous commit files, but found gap: {found.version} to {version}")
            file = self._store.find(f"{self._uri}/{commit_name(version)}")
            assert file is not None
            found = self._made(found, version, file.stamp, bytes(file.content))
        return found

    def _made(self, before: Snapshot, version: int, stamp: object, content: bytes) -> Snapshot:
        """Made once for all handles that have read the same commits."""
        made_of = hash((self._uri, before.made_of, stamp))
        known = self._store.parsed.get(made_of)
        if not isinstance(known, Snapshot):
            known = self._store.parsed[made_of] = applied(before, version, made_of, content)
        return known

    def version(self) -> int:
        return self._snapshot.version

    def schema(self) -> Schema:
        return self._snapshot.schema

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(id=self._snapshot.table["id"])

    def transaction_version(self, app_id: str) -> int | None:
        return self._snapshot.transactions.get(app_id)

    def update_incremental(self) -> None:
        self._store.faults.read(self._uri)
        commits, checkpoints = self._versions(), self._versions(_CHECKPOINT)
        newest, known = max([*commits, *checkpoints], default=self.version()), self.version()
        if newest < known:
            raise DeltaError(f"Unexpected state: the newest version {newest} is older than the existing one {known}")
        following = [v for v in commits if v > known]
        if following and following[0] > known + 1 and max(checkpoints, default=-1) > known:
            self._snapshot = MemoryTable(self._store, self._uri)._snapshot
        else:
            self._snapshot = self._replayed(self._snapshot, following)

    def get_add_actions(self, flatten: bool = False) -> pa.Table:
        return self._snapshot.flat_add_actions if flatten else self._snapshot.add_actions

    def create_checkpoint(self) -> None:
        target, content = f"{self._uri}/_delta_log/{self.version():020d}{_CHECKPOINT}", to_checkpoint(self._snapshot)
        self._store.faults.write(target, lambda: self._store.put(target, content))

    def cleanup_metadata(self) -> None:
        folder, last = f"{self._uri}/_delta_log", max(self._versions(_CHECKPOINT), default=-1)
        number, unit = re.findall(r"\w+", self._snapshot.table["configuration"][_RETENTION])[-2:]
        oldest = self._store.wall_clock() - int(number) * _SECONDS[unit.removesuffix("s")]
        self._store.faults.read(folder)
        for name, file in sorted(self._store.files(folder).items()):
            if name[:20].isdigit() and int(name[:20]) < last and file.stamp[1] / 1e9 < oldest:
                self._store.delete(f"{folder}/{name}")

    def create_write_transaction(
        self, actions: list[AddAction | RemoveAction], mode: str, schema: Schema, *,
        commit_properties: CommitProperties, post_commithook_properties: PostCommitHookProperties,
    ) -> None:  # fmt: skip
        known = self.version()
        self._store.faults.read(self._uri)
        if self._store.find(f"{self._uri}/{commit_name(known)}") is None:
            raise DeltaError(f"Invalid table version: {known}")
        given = [_action(action) for action in actions]
        removed = [*self._snapshot.files.values()] if mode == "overwrite" else []
        now = int(self._store.wall_clock() * 1000)
        info = {"timestamp": now, "operation": "WRITE", **(commit_properties.custom_metadata or {})}
        transactions = commit_properties.app_transactions or []
        content = lines([
            {"commitInfo": info}, *given,
            *({"remove": {"path": f["path"], "dataChange": True, "deletionTimestamp": now, "size": f["size"]}}
              for f in removed),
            *({"txn": {"appId": t.app_id, "version": t.version}} for t in transactions),
        ])  # fmt: skip
        target = f"{self._uri}/{commit_name(known + 1)}"
        if not self._store.faults.commit(self._uri, lambda: self._store.put_if_absent(target, content)):
            raise CommitFailedError("Failed to commit transaction: 0")


def _action(action: AddAction | RemoveAction) -> dict[str, Action]:
    if isinstance(action, AddAction):
        return {"add": {
            "path": action.path, "partitionValues": {}, "size": action.size, "dataChange": action.data_change,
            "modificationTime": action.modification_time, "stats": action.stats,
        }}  # fmt: skip
    removed: dict[str, Any] = {
        "path": action.path, "dataChange": action.data_change, "size": action.size,
        "deletionTimestamp": action.deletion_timestamp,
    }  # fmt: skip
    return {"remove": removed}
