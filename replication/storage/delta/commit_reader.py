"""The commits of a Delta table as files: read by hand, one version at a time, in order.

No call of delta-rs gives the actions of one version, and a streaming source that only tails a log need not load it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot

ACTIONS = "lakelog.actions"  # how many of each kind a commit has: one that is torn between two lines has fewer

_COMMIT = re.compile(r"\d{20}\.json")


class LogGap(Exception):
    """Commits that were not read yet have been cleaned up: build the state from the active files."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file of a commit: name relative to the table, size in bytes, Delta's statistics as JSON.

    `data_change`: of one that is added, whether it brings rows that the table did not have, and of one that is removed,
    whether rows go with it. A compaction does neither; what is written again of a segment brings none.
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
    """One commit, its files in the order they were given.

    Raises FileNotFoundError; CorruptRecordException, naming the file, for one that is empty or torn, as a power cut
    may leave it.
    """
    content = root.read(commit_name(version))
    try:
        return _parsed(version, content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptRecordException(torn_commit(root, version, repr(error))) from error


def torn_commit(root: StorageRoot, version: int, found: str) -> str:
    """What to say of a commit that is not whole: nothing may be built on it, as it is not known what it did."""
    return (
        f"{root.path(commit_name(version))}: this commit is empty or torn ({found}); restore the file, or give the "
        f"table's owner an empty root, which the other replicas fill"
    )


def _parsed(version: int, content: bytes) -> Commit:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in content.splitlines():
        for action, body in json.loads(line).items():
            found.setdefault(action, []).append(body)
    info = found.get("commitInfo", [{}])[-1]
    counts = {action: len(found.get(action, ())) for action in info.get(ACTIONS, ())}
    if not found or counts != info.get(ACTIONS, {}):
        raise ValueError(f"{len(content)} bytes, actions {counts}")
    adds = (_added(body) for body in found.get("add", ()))
    removes = (_removed(body) for body in found.get("remove", ()))
    txns = {_text(body["appId"]): int(body["version"]) for body in found.get("txn", ())}
    return Commit(version, tuple(adds), tuple(removes), txns, info)


def _removed(body: Mapping[str, Any]) -> AddedFile:
    return AddedFile(_text(body["path"]), _count(body.get("size") or 0), data_change=bool(body.get("dataChange", True)))


def _added(body: Mapping[str, Any]) -> AddedFile:
    stats = _text(body.get("stats") or "{}")
    return AddedFile(_text(body["path"]), _count(body["size"]), stats, bool(body["dataChange"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is no number of bytes")
    return value


def check_commits(root: StorageRoot, looked_at: int = 16) -> None:
    """Raises KafkaStorageException, naming the file, if one of the newest commits of a table is torn, or any commit
    that is still there is empty: delta-rs reads that as one that has changed nothing."""
    sizes = root.child("_delta_log").sizes_listed()
    versions = sorted(int(name[:20]) for name in sizes if is_commit(name))
    for version in versions:
        if sizes[commit_name(version).rpartition("/")[2]] == 0:
            raise KafkaStorageException(torn_commit(root, version, "0 bytes"))
    for version in versions[-looked_at:]:
        try:
            read_commit(root, version)
        except FileNotFoundError:  # it has been cleaned up meanwhile
            continue
        except CorruptRecordException as error:
            raise KafkaStorageException(str(error)) from error


def last_version(root: StorageRoot) -> int:
    """The newest version, by a listing of the log; -1 if there is no table."""
    names = [name for name in root.child("_delta_log").list() if is_commit(name)]
    return max((int(name[:20]) for name in names), default=-1)


def drop_commits_before(root: StorageRoot, version: int) -> None:
    """Deletes older commits, the oldest first, and then their checkpoints; a newer checkpoint has all they say.

    So a commit that is still there tells that none after it has been deleted.
    """
    names = sorted(name for name in root.child("_delta_log").list() if name[:20].isdigit())
    old = [name for name in names if int(name[:20]) < version]
    for name in [*filter(is_commit, old), *(name for name in old if not is_commit(name))]:
        root.delete(f"_delta_log/{name}")
