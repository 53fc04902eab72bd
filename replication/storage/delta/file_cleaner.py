"""Deletes data files that no version of a table needs any more. Only the table's owner does it, after a long delay.

A file stays for a while after the commit that removed it, for readers of an older version. A file that is in no version
may belong to a slow writer's next commit, so it stays for a day. A crash between a write and its commit leaves such
files, and a restart forgets which files were removed. Kafka: `file.delete.delay.ms`. Delta: `VACUUM`.

No clock may shorten a delay: this machine's clock may be days ahead of the store's. So every delay runs on the owner's
monotonic clock, from the moment it first saw that a file is not needed, as liveness does. A new process has seen
nothing yet, and waits the whole delay again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from lakelog.replication.storage.delta.data_file_name import may_be_deleted
from lakelog.replication.storage.delta.storage_root import StorageRoot

_ORPHAN_SECONDS = 86400.0
_SWEEP_SECONDS = 300.0


class FileCleaner:
    """Remembers which files were removed, and when. It is not thread-safe. `delete_delay` is in seconds."""

    def __init__(
        self, root: StorageRoot, delete_delay: float, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self.root = root
        self._delete_delay = delete_delay
        self._clock = clock
        self._removed: deque[tuple[float, str]] = deque()
        self._first_seen: dict[str, float] = {}  # files that no version knew at the last sweep
        self._swept_at = clock()

    def removed(self, names: Iterable[str]) -> None:
        """Notes that a commit has just removed these files."""
        now = self._clock()
        self._removed.extend((now, name) for name in sorted(names))

    def clean(self, active: Callable[[], Collection[str]]) -> int:
        """Deletes the files that no version needs any more, and returns their number.

        `active` returns the files of the newest version. It is called only if a deletion is due, and after the
        candidates were found. Raises KafkaStorageException.
        """
        now = self._clock()
        is_removed_due = bool(self._removed) and now - self._removed[0][0] >= self._delete_delay
        is_sweep_due = now - self._swept_at >= _SWEEP_SECONDS
        if not is_removed_due and not is_sweep_due:
            return 0
        names = self.root.sizes_listed() if is_sweep_due else {}
        needed = active()
        count = self._delete_removed(now, needed)
        if is_sweep_due:
            self._swept_at = now
            count += self._sweep(now, needed, names)
        return count

    def _delete_removed(self, now: float, active: Collection[str]) -> int:
        count = 0
        while self._removed and now - self._removed[0][0] >= self._delete_delay:
            name = self._removed[0][1]
            if name not in active and may_be_deleted(name):  # a later commit may have added it again or name any file
                self.root.delete(name)
                count += 1
            self._removed.popleft()
        return count

    def _sweep(self, now: float, active: Collection[str], names: Iterable[str]) -> int:
        """Deletes files that are in no version, and files that were removed before this process started."""
        known = {*active, *(name for _, name in self._removed)}
        unknown = [name for name in names if name not in known and may_be_deleted(name)]
        self._first_seen = {name: self._first_seen.get(name, now) for name in unknown}
        latest = now - max(_ORPHAN_SECONDS, self._delete_delay)
        left = [name for name, seen_at in self._first_seen.items() if seen_at <= latest]
        for name in left:
            self.root.delete(name)
        return len(left)
