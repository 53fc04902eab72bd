"""Tells the commits of a table from late files with the same names.

A writer that was frozen for long may put its commit into a gap that a clean-up left. The file then has the name of a
deleted commit, and looks like the newest one to a reader that has not read further. So a reader recognises a commit by
the size and time of its file, not only by its name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from lakelog.replication.storage.delta.commit import Commit, Stamp
from lakelog.replication.storage.delta.commit_reader import commit_name, last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot

_KEPT = 16
_SURE_SECONDS = 60.0  # how long a look at a commit counts for polls of an object store
SURE_FOR_COMMITS_SECONDS = 10.0  # a commit on a table that has gone meanwhile leaves its file there


class KnownCommits:
    """The commits of one table that one reader or writer has seen. It is not thread-safe."""

    def __init__(self, root: StorageRoot) -> None:
        self._root = root
        self._seen: dict[int, Stamp] = {}
        self._sure = -1, float("-inf")  # the last version that was there, and when

    def remember(self, version: int, stamp: Stamp | None, at: float | None = None) -> None:
        """Notes the stamp of a commit that was read or written `at` a time of the monotonic clock, by default just now;
        None if it could not be told."""
        if stamp is not None:
            self._sure = version, time.monotonic() if at is None else at
            self._seen[version] = stamp
            while len(self._seen) > _KEPT:
                del self._seen[min(self._seen)]

    def in_hand(self, version: int) -> list[Commit]:
        """The commits after a version that this process has in its memory, in order. They were there when it has read
        or written them."""
        noted, found = self._root.newest_versions, list[Commit]()
        while noted is not None:
            last = version + len(found)
            commit, noted_at = noted.commits.after(self._root.uri, last, self._seen.get(last))
            if commit is None:
                break
            if self._seen.get(commit.version) != commit.stamp:
                self.remember(commit.version, commit.stamp, noted_at)
            found.append(commit)
        return found

    def looked_at(self, version: int, since: float | None) -> float | None:
        """When this process has begun a look that found no commit after a version, if it did `since` then; None for
        never."""
        noted = self._root.newest_versions
        return None if noted is None or since is None else noted.looked_at(self._root.uri, version, since)

    @contextmanager
    def one_look(self, version: int, since: float | None) -> Iterator[None]:
        """For who looks for the commits after a version, or takes a look that this process has begun `since` then. If
        there is none yet, only one thread looks at a time, and the others have its answer."""
        noted = self._root.newest_versions
        is_known = self.looked_at(version + len(self.in_hand(version)), since) is not None
        with nullcontext() if noted is None or since is None or is_known else noted.one_look(self._root.uri):
            yield

    def is_there(self, version: int) -> bool:
        """Whether a commit still exists. If it was seen, its file must be the one that was seen."""
        (stamp,) = self._root.stamps([commit_name(version)])
        is_there = self._is_known(version, stamp)
        self.remember(version, stamp if is_there else None)
        return is_there

    def stamp(self, version: int) -> Stamp | None:
        """The stamp of a commit, if it was seen."""
        return self._seen.get(version)

    def _is_known(self, version: int, stamp: Stamp | None) -> bool:
        return stamp is not None and self._seen.get(version, stamp) == stamp

    def is_sure(self, version: int, seconds: float = _SURE_SECONDS) -> bool:
        """Whether the commit was there a moment ago, and its store keeps commits for at least an hour.

        It does not tell that a later commit follows this one: somebody may have made the table again meanwhile."""
        sure, at = self._sure
        return not self._root.is_local and version == sure and time.monotonic() - at < seconds

    def may_follow(self, version: int) -> bool:
        """Whether the commit is there, so that another one may follow it, as far as a look tells that is young enough
        for a writer."""
        return self.is_sure(version, SURE_FOR_COMMITS_SECONDS) or self.is_there(version)

    def _look(self, version: int) -> tuple[Stamp | None, bool]:
        """The stamp of the commit after a version, None without one, and whether the version is still there. One
        look-up is enough if it was there a moment ago and no commit follows."""
        if self.is_sure(version) and not self._root.exists(commit_name(version + 1)):
            return None, True
        following, current = self._root.stamps([commit_name(version + 1), commit_name(version)])
        is_there = self._is_known(version, current)
        self.remember(version, current if is_there else None)
        return following, is_there

    def newest(self, known: int) -> int:
        """The newest version of the table, searched from `known` on, for polls: one look-up or two if it has not moved.

        Lists the log only if `known` is -1 or gone, because the next file may then be a late one in a clean-up's gap.
        """
        while known >= 0:
            following, is_there = self._look(known)
            if not is_there:
                break
            if following is None:
                return known
            known += 1
            self.remember(known, following)
        newest = last_version(self._root)
        if newest >= 0:
            self.remember(newest, self._root.stamps([commit_name(newest)])[0])
        return newest
