"""Limits how many streaming queries of this process start at once.

Spark waits 10 s for the Python process of a query's source. If as many start together as there are fetchers, they take
longer on few cores; all of them fail, and all start again.
"""

from __future__ import annotations

import os
import threading

_turns = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))


class StartTurn:
    """One fetcher's turn to start its query. A process has as many turns at a time as it has cores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_held = False

    def take(self) -> bool:
        """Takes a turn if one is free; does not wait. Returns whether this fetcher has one."""
        with self._lock:
            self._is_held = self._is_held or _turns.acquire(blocking=False)
            return self._is_held

    def give_back(self) -> None:
        """Lets another fetcher start its query. Does nothing without a turn."""
        with self._lock:
            if self._is_held:
                self._is_held = False
                _turns.release()
