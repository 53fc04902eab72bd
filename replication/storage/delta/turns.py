"""Writers of one table take turns where commits take long.

A writer that has won a commit knows the table, and is ready for the next one sooner than the others, who have to read
its commit first. In a distant store it would win over and over, and never notice the others. So a writer gives others
the time of a commit before its own next one: always while they compete, and after some commits in a row to find out
whether they do.
"""

from __future__ import annotations

import random
import time

_REMEMBERED_SECONDS = 10.0  # after a lost commit, others are taken to compete for so long
_FIRST_ROW, _LONGEST_ROW = 8, 64  # commits in a row after which a writer finds out


class Turns:
    """What one writer remembers of the race for its table. Threads may share it: a lost note costs a little time."""

    def __init__(self) -> None:
        self._lost_at = self._won_at = float("-inf")
        self._took = 0.0
        self._in_a_row, self._longest_row = 0, _FIRST_ROW

    def lost(self) -> None:
        """Notes that another writer has won a commit."""
        self._lost_at, self._in_a_row, self._longest_row = time.monotonic(), 0, _FIRST_ROW

    def won(self, took: float) -> None:
        """Notes a commit of this writer, which took so many seconds from its look at the table on."""
        self._won_at, self._took = time.monotonic(), took

    def pause(self) -> float:
        """For how many seconds the writer should wait before its next commit: until others have had the time of one or
        two commits since its last one, or 0.0."""
        now = time.monotonic()
        left = self._won_at + random.uniform(1.0, 2.0) * self._took - now
        self._in_a_row = self._in_a_row + 1 if left > 0 else 0
        if now - self._lost_at < _REMEMBERED_SECONDS:
            return max(0.0, left)
        if self._in_a_row < self._longest_row:
            return 0.0
        self._in_a_row, self._longest_row = 0, min(2 * self._longest_row, _LONGEST_ROW)
        return left
