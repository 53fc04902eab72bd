"""Handles that share what they have read: to open a table, or to move a handle on, is the dearest thing that a step of
a process does, and the processes of a world all read the same tables.

What was read is delta-rs's own handle, at one version, and nothing moves it as long as anybody holds it. It is shared
only while the commit that it has read last is still the same one.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake._internal import RawDeltaTable

from replication.storage.commit import commit_name

_Stamp = tuple[int, int]


@dataclass(eq=False)
class _Snapshot:
    """A handle of delta-rs at one version, and what it has answered."""

    uri: str
    raw: RawDeltaTable
    holders: int = 0
    actions: dict[bool, pa.Table] = field(default_factory=dict)
    versions: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.version = self.raw.version()
        self._read = _stamp(self.uri, self.version)

    @property
    def is_true(self) -> bool:
        return self._read is not None and self._read == _stamp(self.uri, self.version)

    @property
    def is_newest(self) -> bool:
        return self.is_true and _stamp(self.uri, self.version + 1) is None


class Shared(DeltaTable):
    """As a handle of delta-rs, as far as a world uses one."""

    snapshots: ClassVar[dict[str, list[_Snapshot]]] = defaultdict(list)

    def __init__(
        self, table_uri: str, version: int | None = None, storage_options: dict[str, str] | None = None
    ) -> None:
        self._uri, self._storage_options = table_uri, storage_options
        if version is None:
            self._hold(self._newest())
        else:
            self._hold(_Snapshot(table_uri, RawDeltaTable(table_uri, version=version, storage_options=storage_options)))

    def _newest(self) -> _Snapshot:
        """One that others have, or one that nobody has and that is moved on, or a new one."""
        known = self.snapshots[self._uri] = [s for s in self.snapshots[self._uri] if s.holders or s.is_true]
        found = next((s for s in known if s.is_newest), None)
        if found is not None:
            return found
        free = max((s for s in known if not s.holders), key=lambda s: s.version, default=None)
        if free is None:
            raw = RawDeltaTable(self._uri, version=None, storage_options=self._storage_options)
        else:
            known.remove(free)
            raw = free.raw
            raw.update_incremental()
        known.append(_Snapshot(self._uri, raw))
        return known[-1]

    def _hold(self, found: _Snapshot) -> None:
        found.holders += 1
        self._snapshot, self._table = found, found.raw

    def update_incremental(self) -> None:
        """Lets go of what it had, and holds what is newest."""
        before = self._snapshot
        self._hold(self._newest())
        before.holders -= 1

    def get_add_actions(self, flatten: bool = False) -> pa.Table:
        """In an order that tells nothing of how the handle has come to its version."""
        known = self._snapshot.actions
        if flatten not in known:
            known[flatten] = pa.table(super().get_add_actions(flatten)).sort_by("path")
        return known[flatten]

    def transaction_version(self, app_id: str) -> int | None:
        """As it was told first."""
        known = self._snapshot.versions
        if app_id not in known:
            known[app_id] = super().transaction_version(app_id)
        return known[app_id]

    def __del__(self) -> None:
        if hasattr(self, "_snapshot"):
            self._snapshot.holders -= 1


def share_handles(patch: pytest.MonkeyPatch) -> None:
    """From now on handles share what they have read, with those of this world."""
    patch.setattr(Shared, "snapshots", defaultdict(list))
    for place in ("delta_log", "log_snapshot"):
        patch.setattr(f"replication.storage.{place}.DeltaTable", Shared)


def _stamp(uri: str, version: int) -> _Stamp | None:
    try:
        found = os.stat(f"{uri}/{commit_name(version)}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size, found.st_mtime_ns
