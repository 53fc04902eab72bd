"""Taking records out of one's own log: what is left of a segment is written first, then one commit is made.

Nothing is read or written while the log is locked or a commit is awaited: heartbeats and high watermarks need that
lock, and who writes for long at each attempt loses every attempt to a busy producer. What was written once is used
again at the next attempt, and what was written in vain is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.log.log_change import LogChange
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.producer_snapshot import RememberedProducer
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment, write_snapshot
from lakelog.replication.storage.log.segment_rewrite import rewrite

logger = logging.getLogger(__name__)

_MAX_ROUNDS = 100

# The batches of a segment that stay.
Kept = tuple[BatchHeader, ...]
Producers = tuple[RememberedProducer, ...]


@dataclass(frozen=True)
class Removal:
    """What one commit is to take out of a log.

    `kept` has the segments that go, by name, and what is written again of each. `producers` is what is remembered of
    producers from then on; None if that stays as it is.
    """

    kept: Mapping[str, Kept] = field(default_factory=dict)
    producers: Producers | None = None
    txns: Mapping[str, int] = field(default_factory=dict)


class NewFiles:
    """The files that were written for a commit: those that are in no commit when the block ends are deleted.

    A file that was offered to a commit whose outcome is not known stays: it may be in the log all the same.
    """

    def __init__(self, log: ReplicaLog) -> None:
        self._log = log
        self._names: set[str] = set()
        self._offered: set[str] = set()

    def __enter__(self) -> NewFiles:
        return self

    def add(self, segment: Segment) -> Segment:
        """This one was written."""
        self._names.add(segment.name)
        return segment

    def offered(self, change: LogChange) -> LogChange:
        """This change is about to be committed."""
        self._offered.update(segment.name for segment in change.adds)
        return change

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        kept = self._log.current().segments if kind is None else self._offered
        for name in sorted(self._names.difference(kept)):
            try:
                self._log.root.delete(name)
            except OSError as error:  # the file cleaner finds it
                logger.warning("%s: cannot be deleted: %s", self._log.root.path(name), error)


class _NotWritten(Exception):
    """A commit needs segments that are not written yet."""

    def __init__(self, removal: Removal) -> None:
        super().__init__()
        self.removal = removal


class _Rewriter:
    """What is left of segments, each written once; again only if something else is left of it by then."""

    def __init__(self, log: ReplicaLog, files: NewFiles) -> None:
        self._log, self._files = log, files
        self._written: dict[str, tuple[Kept, Segment]] = {}
        self._snapshot: tuple[Producers, Segment] | None = None

    def change(self, state: LogState, removal: Removal) -> LogChange:
        """The change of a removal. Raises _NotWritten."""
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
        """Writes what is missing. A segment that cannot be read is reported: nobody plans with it any more."""
        segments = self._log.current().segments
        for name, kept in self._missing(removal).items():
            if name not in segments:
                continue  # it has gone meanwhile: the next plan knows
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
    """Commits what `plan` wants taken out of the newest state; returns the version, None if there was nothing to do.

    `plan` is asked as often as another commit comes between, and plans with no segment that is broken. A segment that
    turns out to be unreadable is reported as broken, so that its partitions go offline and the others are served.
    [FT-12, OL-01] Raises what `plan` raises, and KafkaStorageException.
    """
    with NewFiles(log) as files:
        rewriter = _Rewriter(log, files)

        def decide(state: LogState) -> LogChange | None:
            removal = plan(state)
            return None if removal is None else rewriter.change(state, removal)

        for _ in range(_MAX_ROUNDS):
            try:
                return log.transact(cause, decide)
            except _NotWritten as wanted:
                rewriter.write(wanted.removal)
        raise KafkaStorageException(f"{log.root.uri}: what is to be written again has changed {_MAX_ROUNDS} times")


def report_unreadable(log: ReplicaLog, segment: Segment, error: CorruptRecordException) -> None:
    """A segment of one's own log has been read in vain: its partitions are refused until it can be read. [OL-01]"""
    log.report_broken(segment.name, str(error))


def readable(state: LogState) -> dict[str, Segment]:
    """The segments that are not broken, in a dictionary of the caller's own: an append changes the state's in place,
    and whoever walks through that one meanwhile gets an error."""
    return {name: segment for name, segment in dict(state.segments).items() if name not in state.broken}


def snapshots_of(state: LogState) -> list[Segment]:
    """The segments that hold what is remembered of producers: also one that has broken since it was read."""
    return [segment for segment in dict(state.segments).values() if segment.producers]
