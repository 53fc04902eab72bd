"""The commits of a Delta table as files: read by hand, one version at a time, in order.

No call of delta-rs gives the actions of one version, and a streaming source that only tails a log need not load it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replication.storage.filesystem import StorageRoot

_COMMIT = re.compile(r"\d{20}\.json")


class LogGap(Exception):
    """Commits that were not read yet have been cleaned up: build the state from the active files."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file of a commit: name relative to the table, size in bytes, Delta's statistics as JSON.

    `data_change`: whether it brings rows that the table did not have; one that was compacted does not.
    """

    name: str
    size: int
    stats: str = field(default="{}", repr=False, compare=False)
    data_change: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Commit:
    """What one version of a table has changed."""

    version: int
    adds: tuple[AddedFile, ...] = ()
    removes: tuple[AddedFile, ...] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


def commit_name(version: int) -> str:
    """The name of the file that holds a commit."""
    return f"_delta_log/{version:020d}.json"


def is_commit(name: str) -> bool:
    """Whether a file of `_delta_log` is one."""
    return _COMMIT.fullmatch(name) is not None


def read_commit(root: StorageRoot, version: int) -> Commit:
    """One commit, its files in the order they were given. Raises FileNotFoundError."""
    adds, removes, txns, info = [], [], {}, {}
    for line in root.read(commit_name(version)).splitlines():
        for action, body in json.loads(line).items():
            if action == "add":
                adds.append(AddedFile(body["path"], body["size"], body.get("stats") or "{}", body["dataChange"]))
            elif action == "remove":
                removes.append(AddedFile(body["path"], body.get("size") or 0))
            elif action == "txn":
                txns[body["appId"]] = body["version"]
            elif action == "commitInfo":
                info = body
    return Commit(version, tuple(adds), tuple(removes), txns, info)


def newest_version(root: StorageRoot, known: int) -> int:
    """The newest version of the table, looked for from `known` on: two look-ups if it has not moved.

    Lists the log only where `known` is -1 or has vanished, since then any number of versions may have come and gone.
    """
    while known >= 0:
        following, current = root.sizes([commit_name(known + 1), commit_name(known)])
        if current is None:
            break  # it was cleaned up, and what follows it may lie in the hole that this has left
        if following is None:
            return known
        known += 1
    return last_version(root)


def last_version(root: StorageRoot) -> int:
    """The newest version, by a listing of the log; -1 if there is no table."""
    names = [name for name in root.child("_delta_log").list() if is_commit(name)]
    return max((int(name[:20]) for name in names), default=-1)
