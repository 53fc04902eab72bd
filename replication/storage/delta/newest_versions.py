"""What a process last saw of the newest versions of tables in object stores, shared by all its threads and brokers.

There each look-up costs money and time. So a poll takes an answer that another thread has found lately, and the less
happens, the older that answer may be. A commit of this process is known at once. What is written depends on no such
answer: a commit loses if the table has moved.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from lakelog.replication.storage.delta.commit_listeners import QUIET
from lakelog.replication.storage.delta.shared_commits import SharedCommits

Value = TypeVar("Value")

LONGEST_SECONDS = 5.0
YOUNG_SECONDS = 1.0  # the age of what a client or a commit begins with
_SHORTEST_SECONDS = 0.2  # several threads of a process poll a table at about the same time
_PATIENCE_SECONDS = 1.0  # for the look of another thread; then a thread looks itself
_PART = 0.25  # of the time since anything has moved
TABLES_KEPT = 10_000  # of which a process knows the newest version
_QUIET_SECONDS, _QUIET_LISTINGS = 20.0, 3  # after so long, listings count so many times as long; they cost most


def idle_age(seconds: float) -> float:
    """The age in seconds that an answer to a poll may have, and the time between two polls, where nothing has moved for
    so many `seconds`."""
    return min(max(0.0, seconds) * _PART, LONGEST_SECONDS)


class NewestVersions:
    """The newest version of each table, by URI, and the time of the look that found it; `commits` has the newest
    commits themselves. It gives up what it knows of the tables that have not moved for longest. Threads may share it.
    """

    def __init__(self) -> None:
        self.commits = SharedCommits()
        self._lock = threading.Lock()
        self._found: OrderedDict[str, tuple[int, float]] = OrderedDict()  # the one that was noted last at the end
        self._listings: OrderedDict[str, tuple[Sequence[str], float]] = OrderedDict()
        self._looking: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()  # as long as a thread has it
        self._moved_at = time.monotonic()

    def age(self, longest: float = LONGEST_SECONDS) -> float:
        """The age in seconds that an answer to a poll may have, `longest` at most."""
        return min(max(idle_age(time.monotonic() - self._moved_at), _SHORTEST_SECONDS), longest)

    @contextmanager
    def one_look(self, uri: str) -> Iterator[None]:
        """Only one thread looks at a table at a time: the others wait for its answer, which may do for them, too."""
        with self._lock:
            lock = self._looking.setdefault(uri, threading.RLock())
        is_alone = lock.acquire(timeout=_PATIENCE_SECONDS)
        try:
            yield
        finally:
            if is_alone:
                lock.release()

    def listing(self, uri: str, age: float, list_now: Callable[[], Sequence[str]]) -> Sequence[str]:
        """The names in a folder as `list_now` has found them `age` seconds ago at most; three times as long ago where
        nothing has moved for a while."""
        age *= _QUIET_LISTINGS if time.monotonic() - self._moved_at > _QUIET_SECONDS else 1
        with self.one_look(uri):
            names, listed_at = self._listings.get(uri, ((), float("-inf")))
            if (now := time.monotonic()) - listed_at >= age:
                names = list_now()
                with self._lock:
                    _put(self._listings, uri, (names, now))
            return names

    def looked(self, uri: str, version: int, at: float) -> None:
        """Notes a look that began `at` a time of the monotonic clock: the table had this version and no later one."""
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

    def looked_at(self, uri: str, version: int, since: float) -> float | None:
        """When the look began that has found no later version than this one; None if it began before `since`, or a
        later version exists."""
        newest, looked_at = self._found.get(uri, (-1, float("-inf")))
        return looked_at if newest == version and looked_at >= since else None

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
