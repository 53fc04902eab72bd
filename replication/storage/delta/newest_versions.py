"""What a process last saw of the newest versions of tables in object stores, shared by all its threads and brokers.

There each look-up costs money and time. So a poll takes an answer that another thread has found lately, and the less
happens, the older that answer may be. A commit of this process is known at once. Each commit looks for itself, and
loses if the table has moved.
"""

from __future__ import annotations

import threading
import time

LONGEST_SECONDS = 5.0
_PART = 0.25  # of the time since anything has moved
_QUIET = {"heartbeat", "renewed"}  # commits that only tell that a process is alive


def idle_age(seconds: float) -> float:
    """The age in seconds that an answer to a poll may have, and the time between two polls, where nothing has moved for
    so many `seconds`."""
    return min(max(0.0, seconds) * _PART, LONGEST_SECONDS)


class NewestVersions:
    """The newest version of each table, by URI, and the time of the look that found it. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, tuple[int, float]] = {}
        self._moved_at = time.monotonic()

    def age(self, longest: float = LONGEST_SECONDS) -> float:
        """The age in seconds that an answer to a poll may have, `longest` at most."""
        return min(idle_age(time.monotonic() - self._moved_at), longest)

    def looked(self, uri: str, version: int, at: float) -> None:
        """Notes a look that began `at` a time of the monotonic clock: the table had this version and no later one."""
        with self._lock:
            self._found[uri] = version, at

    def moved(self, uri: str, version: int, why: object) -> None:
        """Notes that a commit with this version exists, and its reason."""
        with self._lock:
            if version > self._found.get(uri, (-1, 0.0))[0]:
                self._found[uri] = version, float("-inf")
            if why not in _QUIET:
                self._moved_at = time.monotonic()

    def seen(self, uri: str) -> tuple[int, float]:
        """The highest version that is known to exist, and when a look at it began that has found no later one."""
        return self._found.get(uri, (-1, float("-inf")))
