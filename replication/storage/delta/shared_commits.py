"""The newest commits of tables in object stores that a process has read or written, for all its threads and brokers.

A commit never changes, so one request for each of them is enough for a process.
"""

from __future__ import annotations

import threading
import time

from lakelog.replication.storage.delta.commit import Commit, Stamp

_KEPT = 16  # of each table


class SharedCommits:
    """Commits by the URI of their table, each with the stamp of the commit before it. Threads may share it.

    A table may have been made again or restored, and then uses its versions again. So a commit is handed out only to a
    reader that stands at the very commit before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits: dict[str, dict[int, tuple[Stamp, Commit, float]]] = {}

    def add(self, uri: str, before: Stamp | None, commit: Commit) -> None:
        """Keeps a commit that is known to follow the one with the stamp `before`. One without stamps is not kept."""
        if before is None or commit.stamp is None:
            return
        with self._lock:
            kept = self._commits.setdefault(uri, {})
            known = kept.get(commit.version)
            if known is None or (known[0], known[1].stamp) != (before, commit.stamp):
                kept[commit.version] = before, commit, time.monotonic()
            while len(kept) > _KEPT:
                del kept[min(kept)]

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
            self._commits.pop(uri, None)
