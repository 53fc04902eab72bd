"""Tells when a leader's log has new segments for a follower to fetch. [FT-05]"""

from __future__ import annotations

import time

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.new_segments import LogOffset, NewSegments

_FIRST_WAIT_SECONDS = 0.1
_FAR = 16  # commits without segments that count as news all the same: the follower reads each of them once more


class LeaderLogWatch:
    """Follows the commits of the log of broker `leader`, from the newest one at its first look on. Commits that the
    leader itself fetched are no news."""

    def __init__(self, log: StorageRoot, leader: int) -> None:
        self._log = log
        self._segments = NewSegments(log, leader)
        self._seen = self._told = LogOffset(-1)
        self._has_looked = False
        self._errors, self._look_at = 0, float("-inf")

    def has_news(self) -> bool:
        """Whether there are segments, or a gap, of which no call before has told; at its first look, too. In an object
        store the look may be one of this process, and the less happens, the older.

        The first of several errors is news, too: the fetch itself tells why the log cannot be read.
        """
        if time.monotonic() < self._look_at:
            return False
        try:
            found = self._look()
        except KafkaStorageException:
            self._errors += 1
            self._look_at = time.monotonic() + min(_FIRST_WAIT_SECONDS * 2 ** min(self._errors, 10), LONGEST_SECONDS)
            return self._errors == 1
        self._errors = 0
        if self._seen.log < 0 and not self._log.is_local:  # there is no log yet, which only a listing tells
            self._look_at = time.monotonic() + LONGEST_SECONDS
        return found

    def _look(self) -> bool:
        if not self._has_looked:
            self._seen = self._told = self._segments.newest()
            self._has_looked = True
            return True
        found, self._seen, _ = self._segments.read_some(self._seen, age=self._log.poll_age(LONGEST_SECONDS))
        if not found and self._seen.log < self._told.log + _FAR:
            return False
        self._told = self._seen
        return True
