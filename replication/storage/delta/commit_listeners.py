"""Wakes threads after a commit of their own process, and sets how long they wait at most: the time between two polls,
which find the commits of other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self
from weakref import WeakSet

from lakelog.replication.storage.delta.freshness import IDLE_PART, QUIET

_LONGEST, _LONGEST_MS = 5, 500  # times the usual time between two polls; a longer time stays as it is

_lock = threading.Lock()
_listeners: dict[str, WeakSet[CommitListener]] = {}
_last_commit_at = time.monotonic()


class CommitListener:
    """Calls `wake` after each commit of this process to the tables that it listens to, as long as it is referenced.

    `wake` runs in the thread that has committed: it must be quick and must not raise.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self._reasons: dict[str, str | None] = {}

    def listen(self, uri: str, why: str | None = None) -> Self:
        """Listens to commits to the table at `uri` from now on; with `why`, only to those for that reason. The last
        call for a table counts."""
        self._reasons[uri] = why
        with _lock:
            if uri not in _listeners:  # forget the tables whose listeners are all gone
                for other in [other for other, found in _listeners.items() if not found]:
                    del _listeners[other]
            _listeners.setdefault(uri, WeakSet()).add(self)
        return self

    def notify(self, uri: str, why: object) -> None:
        """Calls `wake` if it listens to commits to this table for this reason."""
        if self._reasons.get(uri) in (None, why):
            self.wake()


class CommitWaiter(CommitListener):
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


def notify_listeners(uri: str, why: object) -> None:
    """Wakes the listeners of a table after this process has committed to it for the reason `why`."""
    with _lock:
        listeners = tuple(_listeners.get(uri, ()))
        if not listeners:
            _listeners.pop(uri, None)
    for listener in listeners:
        listener.notify(uri, why)


def note_commit(why: object) -> None:
    """Notes that some process has made a commit for the reason `why`."""
    global _last_commit_at
    if why not in QUIET:
        _last_commit_at = time.monotonic()


def until_poll(milliseconds: float) -> float:
    """The seconds from one poll to the next: `milliseconds`, or longer on an idle cluster.

    The pause grows with the time since the last commit to at most five times `milliseconds`, and to 500 ms: a longer
    one would miss session timeouts and `replica.lag.time.max.ms`.
    """
    idle = (time.monotonic() - _last_commit_at) * IDLE_PART * 1000
    longest = max(milliseconds, min(milliseconds * _LONGEST, _LONGEST_MS))
    return min(max(milliseconds, idle), longest) / 1000
