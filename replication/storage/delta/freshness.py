"""How stale an answer about a table may be: the newest versions and commits that this process has seen, and when."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from lakelog.replication.storage.delta.commit import Commit, Stamp

QUIET = frozenset({"heartbeat", "renewed"})  # reasons of commits which only show that a process is alive
IDLE_PART = 0.25  # of the time since the last commit: the age that an answer may have, and the pause between polls
LONGEST_SECONDS = 5.0  # the maximum staleness of an answer to any poll
RECENT_SECONDS = 1.0  # the maximum staleness of a view that a client or a commit begins with; a disk is always read
_SHORTEST_SECONDS = 0.2  # several threads of a process poll a table at about the same time
_POLL_TIMEOUT_SECONDS = 1.0  # for the poll of another thread; then a thread polls itself
TABLES_KEPT = 10_000  # of which a process knows the newest version
_QUIET_SECONDS, _QUIET_LISTINGS = 20.0, 3  # after 20 s, listings count three times as long, because they cost most
KEPT_BYTES = 32 << 20  # of all tables
_KEPT_OF_A_TABLE = 16  # of each table
_COMMIT_BYTES, _FILE_BYTES, _FACT_BYTES = 2_000, 1_000, 300  # what each takes in memory besides its texts

Value = TypeVar("Value")


@dataclass
class RootReads:
    """How the reads of a process at a root of a quorum have gone, in seconds of the monotonic clock: when one has
    failed last, and from when until when they wait longer."""

    failed_at: float = float("-inf")
    patient_from: float = float("-inf")
    patient_until: float = float("-inf")


class VersionCache:
    """The newest version of each table, by URI, and the time of the poll that found it; `commits` has the newest
    commits themselves. It drops the tables that have not moved for longest. Threads may share it.
    """

    def __init__(self) -> None:
        self.commits = SharedCommits()
        self.identities: dict[str, tuple[str | None, float]] = {}  # of roots of a quorum, and when each was read
        self.reads: dict[str, RootReads] = {}  # at them
        self._lock = threading.Lock()
        self._found: OrderedDict[str, tuple[int, float]] = OrderedDict()  # the one that was noted last at the end
        self._listings: OrderedDict[str, tuple[Sequence[str], float]] = OrderedDict()
        self._contents: OrderedDict[str, tuple[bytes | None, float]] = OrderedDict()
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._polling: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()  # as long as a thread has it
        self._moved_at = time.monotonic()

    def max_staleness(self, longest: float = LONGEST_SECONDS) -> float:
        """The maximum staleness of an answer to a poll, in seconds, `longest` at most. It shrinks while commits are
        frequent."""
        return min(max((time.monotonic() - self._moved_at) * IDLE_PART, _SHORTEST_SECONDS), longest, LONGEST_SECONDS)

    @contextmanager
    def one_poll(self, uri: str) -> Iterator[None]:
        """Coalesces concurrent polls of a table: one thread polls, the others wait for its answer."""
        with self._lock:
            lock = self._polling.setdefault(uri, threading.RLock())
        is_alone = lock.acquire(timeout=_POLL_TIMEOUT_SECONDS)
        try:
            yield
        finally:
            if is_alone:
                lock.release()

    def listing(self, uri: str, max_staleness: float, list_now: Callable[[], Sequence[str]]) -> Sequence[str]:
        """The names in a folder, from `list_now` or as it has found them at most `max_staleness` seconds ago; three
        times as long ago if nothing has moved for a while."""
        max_staleness *= _QUIET_LISTINGS if time.monotonic() - self._moved_at > _QUIET_SECONDS else 1
        with self.one_poll(uri):
            names, listed_at = self._listings.get(uri, ((), float("-inf")))
            if (now := time.monotonic()) - listed_at >= max_staleness:
                names = list_now()
                with self._lock:
                    _put(self._listings, uri, (names, now))
            return names

    def is_due(self, uri: str, seconds: float) -> bool:
        """Whether the last call with the result True for this table is `seconds` ago, or more."""
        with self._lock:
            is_due = time.monotonic() - self._asked.get(uri, float("-inf")) >= seconds
            if is_due:
                _put(self._asked, uri, time.monotonic())
            return is_due

    def content(self, uri: str, max_staleness: float, read_now: Callable[[], bytes | None]) -> bytes | None:
        """The content of a file that is written over, None without one: from `read_now`, or as it has found it at most
        `max_staleness` seconds ago."""
        with self.one_poll(uri):
            content, read_at = self._contents.get(uri, (None, float("-inf")))
            if (now := time.monotonic()) - read_at >= max_staleness:
                content = read_now()
                with self._lock:
                    _put(self._contents, uri, (content, now))
            return content

    def polled(self, uri: str, version: int, at: float) -> None:
        """Notes a poll that began `at` a time of the monotonic clock: the table had this version and no later one."""
        with self._lock:
            _put(self._found, uri, (version, at))

    def moved(self, uri: str, version: int, why: object, at: float = float("-inf")) -> None:
        """Notes that a commit with this version exists, and its reason. A writer gives the time `at` which it began to
        write the commit: all earlier commits of the table have lower versions."""
        with self._lock:
            if version > self._found.get(uri, (-1, 0.0))[0]:
                _put(self._found, uri, (version, at))
            if why not in QUIET:
                self._moved_at = time.monotonic()

    def polled_at(self, uri: str, version: int, since: float) -> float | None:
        """When the poll began that has found no later version than this one; None if it began before `since`, or a
        later version exists."""
        newest, polled_at = self._found.get(uri, (-1, float("-inf")))
        return polled_at if newest == version and polled_at >= since else None

    def forget(self, uri: str) -> None:
        """Drops all that is known of a table, because its history is another one than was known."""
        with self._lock:
            self._found.pop(uri, None)
        self.commits.forget(uri)


def _put(known: OrderedDict[str, Value], uri: str, value: Value) -> None:
    known[uri] = value
    known.move_to_end(uri)
    while len(known) > TABLES_KEPT:
        known.popitem(last=False)


class SharedCommits:
    """Commits by the URI of their table, each with the stamp of the commit before it. Threads may share it.

    A table may have been made again or restored, and then uses its versions again. So a commit is handed out only to a
    reader that stands at the very commit before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits: dict[str, dict[int, tuple[Stamp, Commit, float]]] = {}
        self._sizes: OrderedDict[tuple[str, int], int] = OrderedDict()  # of each commit, the oldest first
        self._bytes = 0

    def add(self, uri: str, before: Stamp | None, commit: Commit) -> None:
        """Keeps a commit that is known to follow the one with the stamp `before`. One without stamps is not kept."""
        if before is None or commit.stamp is None:
            return
        with self._lock:
            known = self._commits.get(uri, {}).get(commit.version)
            if known is None or (known[0], known[1].stamp) != (before, commit.stamp):
                self._drop(uri, commit.version)
                self._commits.setdefault(uri, {})[commit.version] = before, commit, time.monotonic()
                self._sizes[uri, commit.version] = size = _bytes_of(commit)
                self._bytes += size
            kept = self._commits[uri]
            while len(kept) > _KEPT_OF_A_TABLE:
                self._drop(uri, min(kept))
            while self._bytes > KEPT_BYTES:
                self._drop(*next(iter(self._sizes)))

    def _drop(self, uri: str, version: int) -> None:
        of_table = self._commits.get(uri, {})
        self._bytes -= self._sizes.pop((uri, version), 0)
        of_table.pop(version, None)
        if not of_table:
            self._commits.pop(uri, None)

    def after(self, uri: str, version: int, stamp: Stamp | None) -> tuple[Commit | None, float]:
        """The commit after a version whose stamp is this one, and when it was there by the monotonic clock. None if the
        process does not know it."""
        before, commit, noted_at = self._commits.get(uri, {}).get(version + 1, (None, None, 0.0))
        return (commit, noted_at) if stamp is not None and before == stamp else (None, 0.0)

    def content(self, uri: str, name: str) -> bytes | None:
        """The content of a small data file of a table, if one of these commits has it."""
        for _, commit, _ in list(self._commits.get(uri, {}).values()):
            for file in commit.adds:
                if file.name == name:
                    return file.content
        return None

    def forget(self, uri: str) -> None:
        """Drops the commits of a table whose history is another one than was known."""
        with self._lock:
            for version in list(self._commits.get(uri, ())):
                self._drop(uri, version)


def _bytes_of(commit: Commit) -> int:
    """About so much memory a commit takes."""
    files = sum(_FILE_BYTES + len(file.stats) + len(file.content or b"") for file in (*commit.adds, *commit.removes))
    return _COMMIT_BYTES + files + _FACT_BYTES * (len(commit.txns) + len(commit.info))
