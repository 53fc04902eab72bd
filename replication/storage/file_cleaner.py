"""Deleting the data files of a table that no version needs any more: by the table's owner alone, long after.

A file that a commit has removed outlives it, for those who still read an older version. A file that no version knows
may be about to be committed by a slow writer, so it has to be a day old; a crash between a write and its commit leaves
such files. Kafka: `file.delete.delay.ms`. Delta: `VACUUM`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from replication.storage.filesystem import StorageRoot
from replication.storage.segment_name import may_be_deleted

DELETE_DELAY_SECONDS = 3600.0
_ORPHAN_SECONDS = 86400.0
_SWEEP_SECONDS = 300.0


class FileCleaner:
    """Remembers which files have been removed, and when; not for use by two threads at once."""

    def __init__(
        self, root: StorageRoot, delete_delay: float = DELETE_DELAY_SECONDS,
        clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._root = root
        self._delete_delay = delete_delay
        self._clock = clock
        self._wall_clock = wall_clock
        self._removed: deque[tuple[float, str]] = deque()
        self._swept_at = clock()

    def removed(self, names: Iterable[str]) -> None:
        """A commit has removed these files just now."""
        now = self._clock()
        self._removed.extend((now, name) for name in names)

    def clean(self, active: Collection[str]) -> int:
        """Deletes what nobody needs any more, and returns how many files. `active` are those of the newest version.

        Raises KafkaStorageException.
        """
        now, count = self._clock(), 0
        while self._removed and now - self._removed[0][0] >= self._delete_delay:
            name = self._removed[0][1]
            if name not in active and may_be_deleted(name):  # a commit may have brought it back, and name any file
                self._root.delete(name)
                count += 1
            self._removed.popleft()
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            count += self._sweep(active)
        return count

    def _sweep(self, active: Collection[str]) -> int:
        """Deletes files that no version knows, and those that were removed before this process began."""
        known = {*active, *(name for _, name in self._removed)}
        oldest = self._wall_clock() - max(_ORPHAN_SECONDS, self._delete_delay)
        modified = self._root.modified().items()
        left = [name for name, age in modified if name not in known and age < oldest and may_be_deleted(name)]
        for name in left:
            self._root.delete(name)
        return len(left)
