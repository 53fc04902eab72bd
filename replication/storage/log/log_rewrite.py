"""Removes records from a broker's own log: it writes what remains of a segment first, then makes one commit.

It reads and writes nothing while the log is locked or a commit is running: heartbeats and high watermarks need that
lock, and a slow attempt always loses to a busy producer. The next attempt uses the written files again, and unused
files are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.commit import Stamp
from lakelog.replication.storage.delta.commit_format import commit_name, read_commits_after
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.log.log_state import LogChange, LogState
from lakelog.replication.storage.log.producer_snapshot import RememberedProducer
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment, write_snapshot
from lakelog.replication.storage.log.segment_copy import rewrite

logger = logging.getLogger(__name__)

_MAX_ROUNDS = 100

# The batches of a segment that remain.
Kept = tuple[BatchHeader, ...]
Producers = tuple[RememberedProducer, ...]


@dataclass(frozen=True)
class Removal:
    """The records that one commit removes from a log.

    `kept` has the segments that go, by name, and the batches of each that are written again. `producers` is the new
    producer state; None if it stays the same.
    """

    kept: Mapping[str, Kept] = field(default_factory=dict)
    producers: Producers | None = None
    txns: Mapping[str, int] = field(default_factory=dict)


class NewFiles:
    """The files that were written for a commit. At the end of the block it deletes those that are in no commit.

    A file stays if it was in a commit, even if another one has removed it since: readers of that version may need it.
    It stays, too, if the outcome of its commit is unknown. On a local disk the log shows the outcome, as no write
    lands later, but only while its root is there: one that is away for a moment looks like a log without new commits.
    """

    def __init__(self, log: ReplicaLog) -> None:
        self._log = log
        self._names: set[str] = set()
        self._offered: set[str] = set()  # in any change
        self._last: set[str] = set()  # in the last one
        self._since: tuple[int, Stamp | None] = -1, None  # the version that the first one followed, and its stamp

    def __enter__(self) -> NewFiles:
        return self

    def add(self, segment: Segment) -> Segment:
        """Notes that this segment was written."""
        self._names.add(segment.name)
        return segment

    def offered(self, change: LogChange) -> LogChange:
        """Notes that this change is about to be committed."""
        self._since = self._since if self._offered else (self._log.current().version, self._log.stamp)
        self._last = {segment.name for segment in change.adds}
        self._offered |= self._last
        return change

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        kept = {*self._log.current().segments, *self._last} if kind is None else self._files_in_commits()
        for name in sorted(self._names.difference(kept)):
            try:
                self._log.root.delete(name)
            except OSError as error:  # the file cleaner deletes it later
                logger.warning("%s: cannot be deleted: %s", self._log.root.path(name), error)

    def _files_in_commits(self) -> set[str]:
        """The files that are in a commit, or may come into one."""
        root = self._log.root
        if not root.is_local or not self._offered:
            return self._offered
        version, _ = self._since
        try:
            commits = read_commits_after(root, version)
            found = {file.name for commit in commits for file in commit.adds}
            return found if found >= self._offered or self._ends_at(version + len(commits)) else self._offered
        except (KafkaStorageException, CorruptRecordException):
            return self._offered

    def _ends_at(self, version: int) -> bool:
        """Whether the log ends at a version, and is still the one that the first change followed. One listing shows
        both, since a root may go away and come back between two polls."""
        (since, stamp), root = self._since, self._log.root
        names = [f"_delta_log/{name}" for name in root.child("_delta_log").list()]
        is_there = commit_name(since) in names and commit_name(version + 1) not in names
        return is_there and stamp is not None and root.stamps([commit_name(since)]) == [stamp]


class _NotWritten(Exception):
    """A commit needs segments that are not yet written."""

    def __init__(self, removal: Removal) -> None:
        super().__init__()
        self.removal = removal


class _Rewriter:
    """Writes the remaining batches of each segment once, and again only if other batches remain by then."""

    def __init__(self, log: ReplicaLog, files: NewFiles) -> None:
        self._log, self._files = log, files
        self._written: dict[str, tuple[Kept, Segment]] = {}
        self._snapshot: tuple[Producers, Segment] | None = None

    def change(self, state: LogState, removal: Removal) -> LogChange:
        """The change for a removal. Raises _NotWritten."""
        if self._missing(removal) or self._needs_snapshot(removal):
            raise _NotWritten(removal)
        removes = [state.segments[name] for name in removal.kept]
        adds = [self._written[name][1] for name, kept in removal.kept.items() if kept]
        if removal.producers is not None:
            removes += snapshots_of(state)
            adds += [self._snapshot[1]] if removal.producers and self._snapshot else []
        return self._files.offered(LogChange(tuple(adds), tuple(removes), removal.txns))

    def _missing(self, removal: Removal) -> dict[str, Kept]:
        known = {name: kept for name, (kept, _) in self._written.items()}
        return {name: kept for name, kept in removal.kept.items() if kept and kept != known.get(name)}

    def _needs_snapshot(self, removal: Removal) -> bool:
        return bool(removal.producers) and (self._snapshot is None or self._snapshot[0] != removal.producers)

    def write(self, removal: Removal) -> None:
        """Writes the missing files. It reports a segment that cannot be read, so no later plan uses it."""
        segments = self._log.current().segments
        for name, kept in self._missing(removal).items():
            if name not in segments:
                continue  # another commit has removed it: the next plan knows
            try:
                segment = rewrite(self._log.root, segments[name], self._log.root, kept)
            except CorruptRecordException as error:
                report_unreadable(self._log, segments[name], error)
                continue
            if segment:
                self._written[name] = kept, self._files.add(segment)
        if removal.producers and self._needs_snapshot(removal):
            self._snapshot = removal.producers, self._files.add(write_snapshot(self._log.root, removal.producers))


def take_out(log: ReplicaLog, cause: Mapping[str, Any], plan: Callable[[LogState], Removal | None]) -> int | None:
    """Commits the removal that `plan` wants for the newest state. Returns the version, None if there is nothing to do.

    It calls `plan` again after each commit of others. `plan` must not use broken segments. An unreadable segment is
    reported as broken: its partitions go offline and the others stay online. [FT-12, OL-01] Raises what `plan` raises,
    and KafkaStorageException.
    """
    with NewFiles(log) as files:
        rewriter = _Rewriter(log, files)

        def decide(state: LogState) -> LogChange | None:
            removal = plan(state)
            return None if removal is None else rewriter.change(state, removal)

        for _ in range(_MAX_ROUNDS):
            try:
                return log.transact(cause, decide, noop_staleness=LONGEST_SECONDS)
            except _NotWritten as wanted:
                rewriter.write(wanted.removal)
        raise KafkaStorageException(f"{log.root.uri}: the records to rewrite have changed {_MAX_ROUNDS} times")


def report_unreadable(log: ReplicaLog, segment: Segment, error: CorruptRecordException) -> None:
    """Reports a segment of the own log that cannot be read. The log refuses its partitions until it can. [OL-01]"""
    log.report_broken(segment.name, str(error))


def readable(state: LogState) -> dict[str, Segment]:
    """The segments that are not broken, in a new dictionary. An append changes the state's dictionary in place, which
    breaks a loop over it."""
    return {name: segment for name, segment in dict(state.segments).items() if name not in state.broken}


def snapshots_of(state: LogState) -> list[Segment]:
    """The segments with producer state, including one that broke after it was read."""
    return [segment for segment in dict(state.segments).values() if segment.producers]
