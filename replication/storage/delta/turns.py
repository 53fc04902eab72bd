"""Writers of one table take turns where commits take long.

A writer that has won a commit knows the table, and is ready for the next one sooner than the others, who have to read
its commit first. In a distant store it would win over and over, and never notice the others. So a writer gives others
the time of a commit before its own next one: always while they compete, and once after some commits in a row, because
others who only lose leave no trace in the table.
"""

from __future__ import annotations

import random
import time

_REMEMBERED_SECONDS = 10.0  # after a lost commit, others are taken to compete for so long
_LONGEST_SECONDS = 1.0  # a commit that took longer has met a fault of the store, and says nothing of the others
_FIRST_STREAK, _LONGEST_STREAK = 8, 64  # commits in a row after which a writer once lets others go first


class Turns:
    """What one writer remembers of the race for its table. Threads may share it: a lost update costs a short wait."""

    def __init__(self) -> None:
        self._lost_at = self._won_at = float("-inf")
        self._took = 0.0
        self._streak, self._longest_streak = 0, _FIRST_STREAK

    def lost(self) -> None:
        """Notes that another writer has won a commit."""
        self._lost_at, self._streak, self._longest_streak = time.monotonic(), 0, _FIRST_STREAK

    def won(self, seconds: float) -> None:
        """Notes a commit of this writer, and its duration in seconds, reading the table included."""
        self._won_at, self._took = time.monotonic(), min(seconds, _LONGEST_SECONDS)

    def next_pause(self) -> float:
        """Counts one more commit, and returns the seconds to wait before it: until one or two times the duration of the
        last commit have passed since its end; 0.0 if nobody competes."""
        now = time.monotonic()
        left = self._won_at + random.uniform(1.0, 2.0) * self._took - now
        self._streak = self._streak + 1 if left > 0 else 0
        if now - self._lost_at < _REMEMBERED_SECONDS:
            return max(0.0, left)
        if self._streak < self._longest_streak:
            return 0.0
        self._streak, self._longest_streak = 0, min(2 * self._longest_streak, _LONGEST_STREAK)
        return left
