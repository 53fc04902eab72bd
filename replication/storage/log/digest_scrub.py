"""Finds files whose bytes differ from the committed ones, by reading all files of a log at a slow rate. [OL-01]"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.log.broken_segments import check_content
from lakelog.replication.storage.log.replica_log import ReplicaLog

_AGAIN_SECONDS = 600.0  # a file is not read twice within this time, however few there are
_AGAIN_IN_A_STORE_SECONDS = 86_400.0  # object stores check their files themselves, and each read costs
_LONGEST_SECONDS = 60.0  # the most that it catches up on, for example after the process was frozen


class DigestScrub:
    """Reads the files of one log in order of their names, again and again. Only one thread uses it.

    It begins at a random name. Otherwise a broker that restarts often would only read the first files. `again` is the
    least time in seconds between two reads of a file; None: the default of its store.
    """

    def __init__(
        self, log: ReplicaLog, bytes_per_second: int, clock: Callable[[], float] = time.monotonic,
        again: float | None = None,
    ) -> None:  # fmt: skip
        self._log = log
        self._rate = bytes_per_second
        self._clock = clock
        self._run_at = clock()
        self._credit = 0.0
        usual = _AGAIN_SECONDS if log.root.is_local else _AGAIN_IN_A_STORE_SECONDS
        self._again = usual if again is None else again
        self._read_at: dict[str, float] = {}
        self._seen: Collection[str] = set(log.current().segments)
        self._last = f"leader-{random.random():.9f}"

    def run_once(self) -> int:
        """Reads the files that are due, each at most once. Returns the number of broken ones. Raises
        KafkaStorageException."""
        now = self._clock()
        self._credit = min(self._credit + (now - self._run_at) * self._rate, _LONGEST_SECONDS * self._rate)
        self._run_at = now
        return sum(self._is_broken(name) for name in self._due())

    def _due(self) -> Sequence[str]:
        """The next files that the credit allows; the last of them may exceed it."""
        log, state = self._log, self._log.current()
        segments = dict(state.segments)
        self._read_at = {name: at for name, at in self._read_at.items() if self._run_at - at < self._again}
        if not log.root.is_local:  # a new file had the right bytes when it was written
            self._read_at.update(dict.fromkeys(segments.keys() - self._seen, self._run_at))
            self._seen = segments.keys()
        names = sorted(segments.keys() - state.broken.keys() - self._read_at.keys())
        start = bisect_right(names, self._last)
        due = []
        for name in (*names[start:], *names[:start]):
            if self._credit <= 0:
                break
            self._credit -= segments[name].file.size
            due.append(name)
        return due

    def _is_broken(self, name: str) -> bool:
        self._last, self._read_at[name] = name, self._run_at
        segment = self._log.current().segments.get(name)
        if segment is None:  # another commit has removed it meanwhile
            return False
        try:
            check_content(self._log.root, segment.file)
        except CorruptRecordException as error:
            self._log.report_broken(name, str(error))
            return True
        return False
