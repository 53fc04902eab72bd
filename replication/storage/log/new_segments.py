"""Follows a leader's log: finds the segments that it gains, in the order of its commits.

Kafka: the position of a fetch request in the leader's log. [FT-05]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.commit import AddedFile, Commit
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.commit_listeners import note_commit
from lakelog.replication.storage.delta.data_file_name import is_snapshot, leader_of
from lakelog.replication.storage.delta.delta_log import CommitTracker
from lakelog.replication.storage.delta.storage_root import StorageRoot

FULL_POLL = 64  # commits that one poll reads from the log


class NewSegment(NamedTuple):
    """A segment that a version has added. Or a gap: the segments up to the version were not read, and `gap` is
    the cause."""

    version: int
    file: AddedFile | None
    gap: str | None = None


class NewSegments:
    """The segments of one leader in its log, for one reader. It reads each commit once. It is not thread-safe."""

    def __init__(self, log: StorageRoot, leader: int) -> None:
        self._log, self._leader = log, leader
        self._commits = CommitTracker(log)
        self.version = -1  # up to it all commits were read, or returned as a gap
        self.has_more = False  # the last poll may have ended before the newest commit

    def begin(self) -> None:
        """Goes on after the newest commit, which it finds by a listing. Raises KafkaStorageException."""
        self.version, self.has_more = self._commits.newest(-1), False

    def read(self, max_staleness: float | None = None) -> list[NewSegment]:
        """The segments of the next commits, of about 64 of them. If some commits cannot be read, it returns one gap
        instead. In an object store it may use a poll of this process that began at most `max_staleness` seconds ago.
        Raises KafkaStorageException; then the next call reads the same."""
        started = time.monotonic()
        since = None if max_staleness is None else started - max_staleness
        with self._commits.one_poll(self.version, since):
            return self._read(started, since)

    def _read(self, started: float, since: float | None) -> list[NewSegment]:
        """Reads the next commits without asking first whether there are any. If the commit before them was deleted,
        only a listing finds the newest version."""
        begin, self.has_more = self.version, False  # also if it raises: then waits come first
        newest = self._commits.newest(-1) if begin < 0 else -1
        if begin < 0 and newest < 0:  # there is no log yet
            return []
        commits = self._commits.in_hand(begin) if begin >= 0 else []
        in_hand = len(commits)
        if begin >= 0 and self._commits.polled_at(begin + in_hand, since) is not None:
            self.version = begin + in_hand
            return self._segments_of(commits)
        torn: str | None = None
        try:
            while len(commits) < FULL_POLL:
                commits.append(read_commit(self._log, begin + len(commits) + 1))
        except FileNotFoundError:
            pass
        except CorruptRecordException as error:
            torn = str(error)
        # After the commits: a commit after a deleted one may be a late file in a clean-up's gap.
        is_sure = len(commits) == in_hand and torn is None and self._commits.is_sure(begin)
        if begin >= 0 and not is_sure and not self._commits.is_there(begin):
            newest = self._commits.newest(-1)
            return self._gap(newest, f"{self._log.uri} was made again" if newest <= begin else torn)
        if torn is not None or len(commits) < min(newest + 1, FULL_POLL):
            return self._gap(max(newest, begin + len(commits) + 1), torn)
        for commit in commits[in_hand:]:
            self._share(commit)
            self._commits.remember(commit.version, commit.stamp)
        self.version, self.has_more = begin + len(commits), len(commits) >= FULL_POLL
        if self._log.version_cache is not None and not self.has_more:
            self._log.version_cache.polled(self._log.uri, self.version, started)
        return self._segments_of(commits)

    def _segments_of(self, commits: Sequence[Commit]) -> list[NewSegment]:
        return [
            NewSegment(commit.version, file)
            for commit in commits
            for file in commit.adds
            if file.data_change and self._is_segment(file.name)
        ]

    def _is_segment(self, name: str) -> bool:
        """Whether a file may have records of the leader: segments of other leaders are copies."""
        return leader_of(name) in (None, self._leader) and not is_snapshot(name)

    def _share(self, commit: Commit) -> None:
        """Fetchers in one process that have the same leader read its commits once."""
        note_commit(commit.info.get("why"))
        if self._log.version_cache is not None:
            before = self._commits.stamps.get(commit.version - 1)
            self._log.version_cache.commits.add(self._log.uri, before, commit)

    def _gap(self, newest: int, reason: str | None) -> list[NewSegment]:
        """Discards all segments of this read: a late commit may have landed in a gap that a clean-up left."""
        self.version = newest
        reason = reason or f"commits up to {newest} of {self._log.uri} have been cleaned up"
        return [NewSegment(newest, None, reason)]
