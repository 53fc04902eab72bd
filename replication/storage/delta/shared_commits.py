"""The newest commits of tables in object stores that a process has read or written, for all its threads and brokers.

A commit never changes, so one request for each of them is enough for a process. It keeps no more of them than a fixed
number of bytes, however many tables there are; who misses one asks the store.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from lakelog.replication.storage.delta.commit import Commit, Stamp

KEPT_BYTES = 32 << 20  # of all tables
_KEPT = 16  # of each table
_COMMIT_BYTES, _FILE_BYTES, _FACT_BYTES = 2_000, 1_000, 300  # what each takes in memory besides its texts


class SharedCommits:
    """Commits by the URI of their table, each with the stamp of the commit before it. Threads may share it.

    A table may have been made again or restored, and then uses its versions again. So a commit is handed out only to a
    reader that stands at the very commit before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits: dict[str, dict[int, tuple[Stamp, Commit, float]]] = {}
        self._sizes: OrderedDict[tuple[str, int], int] = OrderedDict()  # of each commit, the oldest first
        self._bytes = 0

    def add(self, uri: str, before: Stamp | None, commit: Commit) -> None:
        """Keeps a commit that is known to follow the one with the stamp `before`. One without stamps is not kept."""
        if before is None or commit.stamp is None:
            return
        with self._lock:
            known = self._commits.get(uri, {}).get(commit.version)
            if known is None or (known[0], known[1].stamp) != (before, commit.stamp):
                self._drop(uri, commit.version)
                self._commits.setdefault(uri, {})[commit.version] = before, commit, time.monotonic()
                self._sizes[uri, commit.version] = size = _bytes_of(commit)
                self._bytes += size
            kept = self._commits[uri]
            while len(kept) > _KEPT:
                self._drop(uri, min(kept))
            while self._bytes > KEPT_BYTES:
                self._drop(*next(iter(self._sizes)))

    def _drop(self, uri: str, version: int) -> None:
        of_table = self._commits.get(uri, {})
        self._bytes -= self._sizes.pop((uri, version), 0)
        of_table.pop(version, None)
        if not of_table:
            self._commits.pop(uri, None)

    def after(self, uri: str, version: int, stamp: Stamp | None) -> tuple[Commit | None, float]:
        """The commit after a version whose stamp is this one, and when it was there by the monotonic clock. None if the
        process does not know it."""
        before, commit, noted_at = self._commits.get(uri, {}).get(version + 1, (None, None, 0.0))
        return (commit, noted_at) if stamp is not None and before == stamp else (None, 0.0)

    def content(self, uri: str, name: str) -> bytes | None:
        """The content of a small data file of a table, if one of these commits has it."""
        for _, commit, _ in list(self._commits.get(uri, {}).values()):
            for file in commit.adds:
                if file.name == name:
                    return file.content
        return None

    def forget(self, uri: str) -> None:
        """Drops the commits of a table whose history is another one than was known."""
        with self._lock:
            for version in list(self._commits.get(uri, ())):
                self._drop(uri, version)


def _bytes_of(commit: Commit) -> int:
    """About so much memory a commit takes."""
    files = sum(_FILE_BYTES + len(file.stats) + len(file.content or b"") for file in (*commit.adds, *commit.removes))
    return _COMMIT_BYTES + files + _FACT_BYTES * (len(commit.txns) + len(commit.info))
