"""Finds the segments that a leader's log has gained since an offset, in the order of its commits.

Kafka: the position of a fetch request in the leader's log. [FT-05]
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.commit import AddedFile, Commit
from lakelog.replication.storage.delta.commit_listeners import note_commit
from lakelog.replication.storage.delta.commit_reader import read_commit
from lakelog.replication.storage.delta.known_commits import KnownCommits
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment_name import is_snapshot, leader_of

UNBOUNDED = 2**62
FULL_LOOK = 64  # commits that one look reads


class LogOffset(NamedTuple):
    """A place in a log table: `log` is the last version that was read whole, `files` the number of added files already
    read from the next version."""

    log: int
    files: int = 0


class NewSegment(NamedTuple):
    """A segment that a version has added. Without a file it is a gap: segments up to that version were not read, for
    this reason."""

    version: int
    file: AddedFile | None
    gap: str | None = None


class NewSegments:
    """Reads the segments of one leader from its log, for one reader. It is not thread-safe."""

    def __init__(self, log: StorageRoot, leader: int) -> None:
        self._log, self._leader = log, leader
        self._commits = KnownCommits(log)
        self._read: dict[int, Commit] = {}  # commits that the last look has found
        self._followed = -1  # the commit before them, which was there after they were read
        self._is_gone = False  # or it was not

    def newest(self) -> LogOffset:
        """The newest commit, from a listing. Raises KafkaStorageException."""
        return LogOffset(self._commits.newest(-1))  # and its stamp, from which on other threads' commits are known

    def read(
        self, start: LogOffset, max_bytes: int = UNBOUNDED, age: float | None = None
    ) -> tuple[list[NewSegment], LogOffset, bool]:
        """All segments after `start`, the offset after them, and whether there may be more: it ends before the segment
        with which their sizes exceed `max_bytes`, but the first one is read whatever its size. With an `age` it may
        take a look at an object store that this process began at most so many seconds ago. Raises
        KafkaStorageException."""
        found: list[NewSegment] = []
        while True:
            more, end, newest = self.read_some(start, max_bytes, age, is_first=not found)
            found += more
            max_bytes -= sum(segment.file.size for segment in more if segment.file)
            is_full = end < newest or max_bytes <= 0
            if is_full or newest.log < start.log + FULL_LOOK or any(segment.gap for segment in more):
                return found, end, is_full
            start = end

    def read_some(
        self, start: LogOffset, max_bytes: int = UNBOUNDED, age: float | None = None, is_first: bool = True
    ) -> tuple[list[NewSegment], LogOffset, LogOffset]:
        """Like `read`, but of some 64 commits at most; and the end of the commits that the look has found."""
        target = self._newest(start.log, age)
        if self._is_gone and target.log <= start.log:
            found, end = self._gap(target, f"{self._log.uri} was made again")
        else:
            found, end = self.between(start, target, max_bytes, is_first)
        return found, end, target

    def between(
        self, start: LogOffset, target: LogOffset, max_bytes: int = UNBOUNDED, is_first: bool = True
    ) -> tuple[list[NewSegment], LogOffset]:
        """The segments from `start` to `target`, and the offset after them: `target`, or an earlier one if the next
        segment does not fit into `max_bytes`. With `is_first` the first one is read whatever its size. Raises
        KafkaStorageException."""
        found: list[NewSegment] = []
        version, skip, left = start.log, start.files, max_bytes
        end: LogOffset | None = None
        while end is None and version < target.log + (target.files > 0):
            try:
                commit = self._read.pop(version + 1, None) or read_commit(self._log, version + 1)
            except FileNotFoundError:
                return self._gap(target)
            except CorruptRecordException as error:
                return self._gap(target, str(error))
            files = [file for file in commit.adds if file.data_change]
            stop = len(files) if version < target.log else target.files
            for index in (i for i in range(skip, stop) if self._is_segment(files[i].name)):
                left -= files[index].size  # other files do not count, or a read might never advance
                if left < 0 and (found or not is_first):
                    end = LogOffset(version, index)
                    break
                found.append(NewSegment(version + 1, files[index]))
            version, skip = version + 1, 0
        if 0 <= start.log < version and start.log != self._followed and not self._commits.is_there(start.log):
            return self._gap(target)
        return found, end or (target if target.files else LogOffset(version))

    def _newest(self, version: int, age: float | None) -> LogOffset:
        started = time.monotonic()
        since = None if age is None else started - age
        with self._commits.one_look(version, since):
            return self._look(version, started, since)

    def _look(self, version: int, started: float, since: float | None) -> LogOffset:
        """The newest commit, or the last one that is read now. It reads the commits after `version` instead of looking
        for them first. Only a listing tells where that version is gone."""
        found, is_torn = self._commits.in_hand(version), False
        in_hand = len(found)
        if version >= 0 and self._commits.looked_at(version + in_hand, since) is not None:
            self._read, self._followed = {commit.version: commit for commit in found}, version
            self._is_gone = False
            return LogOffset(version + in_hand)
        with suppress(FileNotFoundError):
            while version >= 0 and len(found) < FULL_LOOK and not is_torn:
                try:
                    found.append(read_commit(self._log, version + len(found) + 1))
                except CorruptRecordException:
                    is_torn = True  # it counts, and its reader says why it cannot be read
        self._read, self._followed = {}, -1
        is_sure = len(found) == in_hand and not is_torn and self._commits.is_sure(version)
        self._is_gone = version >= 0 and not is_sure and not self._commits.is_there(version)
        if version < 0 or self._is_gone:
            return LogOffset(self._commits.newest(-1))
        for commit in found[in_hand:]:
            self._share(commit)
            self._commits.remember(commit.version, commit.stamp)
        if self._log.newest_versions is not None and len(found) < FULL_LOOK and not is_torn:
            self._log.newest_versions.looked(self._log.uri, version + len(found), started)
        self._read, self._followed = {commit.version: commit for commit in found}, version
        return LogOffset(version + len(found) + is_torn)

    def _is_segment(self, name: str) -> bool:
        """Whether a file may have records of the leader: segments of other leaders are copies."""
        return leader_of(name) in (None, self._leader) and not is_snapshot(name)

    def _share(self, commit: Commit) -> None:
        """Fetchers in one process that have the same leader read its commits once."""
        note_commit(commit.info.get("why"))
        if self._log.newest_versions is not None:
            before = self._commits.stamp(commit.version - 1)
            self._log.newest_versions.commits.add(self._log.uri, before, commit)

    def _gap(self, target: LogOffset, reason: str | None = None) -> tuple[list[NewSegment], LogOffset]:
        """Discards all segments of this read: a late commit may have landed in a gap that a clean-up left."""
        newest = LogOffset(target.log + (target.files > 0))
        reason = reason or f"commits up to {newest.log} of {self._log.uri} have been cleaned up"
        return [NewSegment(newest.log, None, reason)], newest
