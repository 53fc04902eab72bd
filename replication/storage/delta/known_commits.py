"""Telling the commits of a table from ghosts of theirs.

A writer that was frozen for long may put its commit into the hole that a clean-up has left. The file then has the name
of a commit that is gone, and looks like the newest one to whoever has read no further. So a commit that was seen is
known by what its file was like, and not by its name alone.
"""

from __future__ import annotations

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.commit_reader import commit_name, last_version, torn_commit
from lakelog.replication.storage.delta.storage_root import Stamp, StorageRoot

_KEPT = 16
_NO_STAMP = (-1, -1)


class KnownCommits:
    """The commits of one table that one reader or writer has seen; not for use by two threads at once."""

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self._seen: dict[int, Stamp] = {}

    def arrive(self, version: int) -> None:
        """Remembers a commit that has been read as it is now.

        Raises KafkaStorageException if it is empty: delta-rs reads that as one that has changed nothing, so that what
        it has lost would be written over.
        """
        (stamp,) = self._root.stamps([commit_name(version)])
        self._remember(version, stamp)
        if stamp is not None and stamp[0] == 0:
            raise KafkaStorageException(torn_commit(self._root, version, "0 bytes"))

    def doubt(self, version: int) -> None:
        """What was read of a commit does not hold: whatever is there counts as another one."""
        self._remember(version, _NO_STAMP)

    def _remember(self, version: int, stamp: Stamp | None = None) -> None:
        if stamp is not None:
            self._seen[version] = stamp
            while len(self._seen) > _KEPT:
                del self._seen[min(self._seen)]

    def is_there(self, version: int) -> bool:
        """Whether a commit is still there: the one that was seen, if it was, and no other under its name."""
        (stamp,) = self._root.stamps([commit_name(version)])
        return self._is_known(version, stamp)

    def _is_known(self, version: int, stamp: Stamp | None) -> bool:
        return stamp is not None and self._seen.get(version, stamp) == stamp

    def is_newest(self, version: int) -> bool:
        """Whether a commit is still there and none follows: two look-ups, no listing. If it is gone, any number of
        commits may have come and gone since."""
        following, current = self._root.stamps([commit_name(version + 1), commit_name(version)])
        return following is None and self._is_known(version, current)

    def newest(self, known: int) -> int:
        """The newest version of the table, looked for from `known` on: two look-ups if it has not moved.

        Lists the log only where `known` is -1 or has vanished: what follows it may lie in the hole of a clean-up.
        """
        while known >= 0:
            following, current = self._root.stamps([commit_name(known + 1), commit_name(known)])
            if not self._is_known(known, current):
                break
            self._remember(known, current)
            if following is None:
                return known
            known += 1
            self._remember(known, following)
        newest = last_version(self._root)
        self._remember(newest, *self._root.stamps([commit_name(newest)] if newest >= 0 else []))
        return newest
