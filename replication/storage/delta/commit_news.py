"""What is committed to tables, for the threads of this process that wait for it.

A commit of this process wakes them, as in Kafka the code that changes a partition completes the delayed operations that
watch it. Polls find the commits of other processes; the less happens, the rarer they are. [DO-01, DO-02]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self
from weakref import WeakSet

QUIET = frozenset({"heartbeat", "renewed"})  # reasons of commits that only tell that a process is alive
_LONGEST = 4  # times the usual time between two polls
_PART = 0.25  # of the time since anything was committed

_lock = threading.Lock()
_hearers: dict[str, WeakSet[CommitNews]] = {}
_moved_at = time.monotonic()


class CommitNews:
    """Calls `wake` after each commit of this process to the tables that it hears, as long as somebody holds it.

    `wake` runs in the thread that has committed: it must be quick and must not raise.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._reasons: dict[str, str | None] = {}

    def hear(self, uri: str, why: str | None = None) -> Self:
        """Hears the commits to the table at a URI from now on, with `why` only those for it. Returns itself."""
        self._reasons[uri] = why
        with _lock:
            _hearers.setdefault(uri, WeakSet()).add(self)
        return self

    def committed(self, uri: str, why: object) -> None:
        """Wakes if it hears commits to this table for this reason."""
        if self._reasons.get(uri) in (None, why):
            self._wake()


class CommitPolls(CommitNews):
    """Lets a thread wait for commits of this process, and for its polls, until `stop`."""

    def __init__(self) -> None:
        self._woken, self.stopping = threading.Event(), threading.Event()
        super().__init__(self._woken.set)

    def wait(self, milliseconds: float) -> bool:
        """Returns after a commit since the last call, or when a poll is due, see `until_poll`: False after `stop`."""
        if not self.stopping.is_set():
            self._woken.wait(until_poll(milliseconds))
        self._woken.clear()
        return not self.stopping.is_set()

    def stop(self) -> None:
        """Ends the wait that is under way, and all others."""
        self.stopping.set()
        self._woken.set()


def committed(uri: str, why: object) -> None:
    """Wakes who hears a table to which this process has made a commit for the reason `why`."""
    with _lock:
        hearers = tuple(_hearers.get(uri, ()))
        if not hearers:
            _hearers.pop(uri, None)
    for hearer in hearers:
        hearer.committed(uri, why)


def seen(why: object) -> None:
    """Notes that there is a commit for the reason `why`, made by any process."""
    global _moved_at
    if why not in QUIET:
        _moved_at = time.monotonic()


def until_poll(milliseconds: float) -> float:
    """The seconds from one poll to the next: `milliseconds`, or up to four times as long if no commit was seen for
    long."""
    return min(max(milliseconds / 1000, (time.monotonic() - _moved_at) * _PART), milliseconds / 1000 * _LONGEST)
