"""Signs of life of the processes of a quorum: a small file at each root, written over and over.

A heartbeat that changes nothing and a renewal of the controller's lease decide nothing: epochs and claims fence. So
with several roots they are no commits, which would take two files a root. Each sign has the epoch of its writer and a
number, and the writer goes on to the next number only once a majority of the roots has this one. So a reader that sees
the number move at any one root knows that its writer still reached a majority. It writes to a majority alone, since
these writes are most of what an idle cluster costs: to the same roots as others do while it reaches them. A reader
reads at one of those, and asks a majority if nothing moves there, because it may be one that the writer cannot reach.

A sign of another epoch than the one of the table counts for nothing: a process that was frozen may write one late, and
a root that was restored may have an old one. A number that was seen never goes back.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.quorum_member import FOLDER, SIGNS, QuorumMember
from lakelog.replication.storage.delta.storage_root import StorageRoot

_STILL = 2.5  # a sign stands still if it has not moved for this many times the staleness that its reader allows,
_LEAST_SECONDS = 1.0  # and for at least this time

Value = TypeVar("Value")


class _Roots(Protocol):
    """The part of `ClusterQuorum` that signs of life need."""

    def near_member(self, table: tuple[str, ...]) -> QuorumMember:
        """The root at which this process reads what `at_first_majority` has written."""

    def at_first_majority(self, call: Callable[[StorageRoot], Value]) -> Sequence[Value]:
        """Calls `call` with a majority of the roots that vote, the same ones for all processes that reach them."""

    def at_majority(self, call: Callable[[StorageRoot], Value]) -> Sequence[Value]:
        """Calls `call` with each root that votes, and returns the results of a majority."""

    def catch_up_soon(self, table: tuple[str, ...]) -> None:
        """Begins to read what was decided on a table."""


class _Own(NamedTuple):
    epoch: int
    number: int = 0
    is_at_majority: bool = True


class _Seen(NamedTuple):
    epoch: int
    number: int = 0
    moved_at: float = float("-inf")
    asked_at: float = float("-inf")


class LifeSigns:
    """The signs of life that one process writes and reads. Threads may share it."""

    def __init__(self, quorum: _Roots) -> None:
        self._quorum = quorum
        self._lock = threading.Lock()
        self._own: dict[tuple[str, ...], _Own] = {}  # by the table of the writer, as below
        self._seen: dict[tuple[str, ...], _Seen] = {}
        self._newer = set[tuple[tuple[str, ...], int]]()  # tables and epochs that signs had before the table did

    def show(self, table: tuple[str, ...], epoch: int) -> int:
        """Writes the next sign of a table's owner, and returns its number. Raises KafkaStorageException if no majority
        of the roots has it."""
        with self._lock:
            own = self._own.get(table, _Own(epoch))
            own = own if own.epoch == epoch else _Own(epoch)
            number = own.number + 1 if own.is_at_majority else own.number  # the same one until a majority has it
            own = self._own[table] = _Own(epoch, number, False)
        content = json.dumps({"epoch": epoch, "number": own.number}).encode()
        self._quorum.at_first_majority(lambda root: _signs(root).put(_name(table), content))
        with self._lock:
            self._own[table] = own._replace(is_at_majority=True)
        return own.number

    def number(self, table: tuple[str, ...], epoch: int, max_staleness: float | None) -> int:
        """The number of the newest sign of a table's owner under an epoch, 0 without one.

        Without a `max_staleness` it asks a majority. With one, in seconds, it reads one root, in an object store as
        this process has read it so long ago at most. Raises KafkaStorageException if no majority answers and that root
        does not.
        """
        now = time.monotonic()
        with self._lock:
            seen = self._seen.get(table, _Seen(epoch))
        seen = seen if seen.epoch == epoch else _Seen(epoch)
        found: list[bytes | None] = []
        patience = None if max_staleness is None else max(max_staleness * _STILL, _LEAST_SECONDS)
        if max_staleness is not None:
            with suppress(KafkaStorageException):
                near = self._quorum.near_member(table)
                found = [near.read(lambda root: _read_lately(root, table, max_staleness))]
        moved = max([_number(content, epoch) for content in found], default=-1) > seen.number
        is_still = patience is None or now - max(seen.moved_at, seen.asked_at) > patience
        if not found or (is_still and not moved):
            try:
                found += self._quorum.at_majority(lambda root: _read(root, table))
                seen = seen._replace(asked_at=now)
            except KafkaStorageException:
                if not found:
                    raise
        self._note_epoch(table, max(map(_epoch, found)), epoch)
        newest = max(_number(content, epoch) for content in found)
        with self._lock:
            known = self._seen.get(table, seen)
            least = known.number if known.epoch == epoch else 0
            is_new = newest > max(seen.number, least)
            seen = seen._replace(number=max(newest, seen.number, least), moved_at=now if is_new else seen.moved_at)
            self._seen[table] = seen
        return seen.number

    def _note_epoch(self, table: tuple[str, ...], found: int, known: int) -> None:
        """A sign of a later epoch than is known shows that the table has a newer version than the home."""
        with self._lock:
            is_new = found > known and (table, found) not in self._newer
            self._newer |= {(table, found)} if is_new else set()
        if is_new:
            self._quorum.catch_up_soon(table)

    def written_at(self, table: tuple[str, ...]) -> float:
        """When the newest sign was written, by the clock of its store, in seconds since the epoch; 0.0 without one."""
        return max(self._quorum.at_majority(lambda root: _signs(root).modified().get(_name(table), 0.0)))


def _number(content: bytes | None, epoch: int) -> int:
    """The number of a sign of an epoch; 0 if it is of another one, torn, or not there."""
    with suppress(ValueError, TypeError, KeyError):
        found: Mapping[str, int] = json.loads(content or b"")
        return int(found["number"]) if int(found["epoch"]) == epoch else 0
    return 0


def _epoch(content: bytes | None) -> int:
    """The epoch of a sign; -1 if it is torn, or not there."""
    with suppress(ValueError, TypeError, KeyError):
        return int(json.loads(content or b"")["epoch"])
    return -1


def _signs(root: StorageRoot) -> StorageRoot:
    return root.child(FOLDER, SIGNS)


def _name(table: Sequence[str]) -> str:
    return f"{'-'.join(table)}.json"


def _read(root: StorageRoot, table: Sequence[str]) -> bytes | None:
    try:
        return _signs(root).read(_name(table))
    except FileNotFoundError:
        return None


def _read_lately(root: StorageRoot, table: Sequence[str], max_staleness: float) -> bytes | None:
    """As `_read`; in an object store as this process has read it at most `max_staleness` seconds ago."""
    cache, uri = root.version_cache, _signs(root).path(_name(table))
    return cache.content(uri, max_staleness, lambda: _read(root, table)) if cache else _read(root, table)
