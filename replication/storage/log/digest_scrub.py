"""Reading a log's files again, so many bytes a second, to find those whose bytes are no longer what was committed.

A disk forgets bits in silence, and a file may lie unread for long while others count on it. What is found broken goes
offline at once, and is fetched again from another replica. [OL-01]
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.log.broken_segments import check_content
from lakelog.replication.storage.log.replica_log import ReplicaLog

_LONGEST_SECONDS = 60.0  # what was not read for longer, as of a process that was frozen, is not made up for


class DigestScrub:
    """Goes around the files of one log in the order of their names, for one thread.

    It begins anywhere, as names are random: else who is often started again would only ever read the first ones.
    """

    def __init__(self, log: ReplicaLog, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._rate = bytes_per_second
        self._clock = clock
        self._looked_at = clock()
        self._credit = 0.0
        self._last = f"leader-{random.random():.9f}"

    def run_once(self) -> int:
        """Reads what is due, each file once at most; returns how many are broken. Raises KafkaStorageException."""
        now = self._clock()
        self._credit = min(self._credit + (now - self._looked_at) * self._rate, _LONGEST_SECONDS * self._rate)
        self._looked_at = now
        return sum(self._is_broken(name) for name in self._due())

    def _due(self) -> Sequence[str]:
        """The files that follow the last one, as far as the credit goes: the last of them may go beyond it."""
        state = self._log.current()
        segments = dict(state.segments)
        names = sorted(segments.keys() - state.broken.keys())
        start = bisect_right(names, self._last)
        due = []
        for name in (*names[start:], *names[:start]):
            if self._credit <= 0:
                break
            self._credit -= segments[name].file.size
            due.append(name)
        return due

    def _is_broken(self, name: str) -> bool:
        self._last = name
        segment = self._log.current().segments.get(name)
        if segment is None:  # it has been removed meanwhile
            return False
        try:
            check_content(self._log.root, segment.file)
        except CorruptRecordException as error:
            self._log.report_broken(name, str(error))
            return True
        return False
