"""The log of a broker: one Delta table with the records of all its replicas.

Every change is decided on the replayed state and committed at exactly that version. The loser replays the winner's work
and decides again, so a change of role, which is a commit like any other, fences all that was decided before it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from lakelog.replication.errors import CorruptRecordException, OffsetOutOfRangeException, StaleBrokerEpochException
from lakelog.replication.protocol.partition_log import LEADER, Role, role_version
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_reader import AddedFile, LogGap, check_commits
from lakelog.replication.storage.delta.compare_and_set import compare_and_set
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import (
    BrokenSegment,
    find_faults,
    read_again,
    read_segments,
    with_statistics,
)
from lakelog.replication.storage.log.healing import Healing
from lakelog.replication.storage.log.log_change import Decision, LogChange, check_change, start_chains
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.log_txns import BROKER_EPOCH, role_app_id, start_app_id
from lakelog.replication.storage.log.segment import Segment, read_records, rows_of
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)


class ReplicaLog:
    """A handle on a log table: its owner's, a producer's or a reader's. May be shared by threads."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._lock = threading.RLock()
        self._broker_epoch: int | None = None
        self._known_segments: dict[str, Segment | BrokenSegment] = {}
        self._healing = Healing(self.root.uri, self.heal)
        self._is_doubtful = False  # the state may be of versions that are gone: nothing can be added to it
        self._state = LogState(self._transaction_version)
        self._rebuild()

    @classmethod
    def create(cls, root: StorageRoot) -> ReplicaLog:
        """Makes an empty log table at `root`. Raises InconsistentClusterIdException if there is one."""
        return cls(DeltaLog.create(root, LOG))

    @classmethod
    def open(cls, root: StorageRoot) -> ReplicaLog:
        """Opens a log and replays it; partitions whose files are broken are refused one by one. [OL-01]

        Raises CorruptRecordException if offsets have gaps that no broken file accounts for.
        """
        return cls(DeltaLog.open(root))

    def _transaction_version(self, app_id: str) -> int | None:
        with self._lock:
            return self._log.transaction_version(app_id)

    @property
    def root(self) -> StorageRoot:
        """Where the table lies; names of segments are relative to it."""
        return self._log.root

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return self._log.table_id

    def has_moved(self) -> bool:
        """Whether others have committed since the last refresh."""
        with self._lock:
            return self._is_doubtful or self._state.version != self._log.version or self._log.has_moved()

    def refresh(self) -> LogState:
        """Replays what has been committed since and returns the state: only new commits are read.

        Raises StaleBrokerEpochException if a newer process has claimed the log of this one.
        """
        with self._lock:
            if self.has_moved():
                self._replay()
            if self._state.broken:
                self._healing.begin_if_due()
            if self._broker_epoch is not None and self._state.broker_epoch > self._broker_epoch:
                why = f"a newer process of this broker has claimed it under epoch {self._state.broker_epoch}"
                raise StaleBrokerEpochException(f"{self.root.uri}: broker epoch {self._broker_epoch} is fenced: {why}")
            return self._state

    def current(self) -> LogState:
        """The state as last replayed, without a look at the table and without waiting for one under way."""
        return self._state

    def maintain(self) -> None:
        """Keeps opening cheap; for the owner of the table, now and then."""
        with self._lock:
            self._log.checkpoint_if_due(LOG.commits_kept)

    def _replay(self) -> None:
        self._log.move()
        try:
            if self._is_doubtful or self._log.version <= self._state.version:
                raise LogGap(f"{self.root.uri}: its versions have been used again")
            for commit in self._log.commits_after(self._state.version):
                self._state = self._state.after(commit, self._segments(commit.adds))
        except LogGap:
            self._rebuild()
        except CorruptRecordException as error:  # the files say what is true: if they do not add up, this raises again
            logger.warning("%s: what was replayed does not add up, it is read anew: %s", self.root.uri, error)
            self._rebuild()
        self._known_segments.clear()

    def _rebuild(self, faults: Mapping[str, str] = {}) -> None:
        """From the active files; `faults` are those of segments that were read before they broke.

        One that fails is done again: by then the handle is where the table is, and tells of no other commits.
        """
        self._is_doubtful = True
        check_commits(self.root, looked_at=1)
        segments = with_statistics(self._segments(self._log.active_files()), self._log.statistics)
        state = LogState(self._transaction_version)  # a new one: other threads may be looking at the old one
        state.learn(self._state.topics)
        state.rebuild(self._log.version, segments, self._state.partitions())
        state.break_segments(faults)
        self._state, self._is_doubtful = state, False

    def scrub(self) -> bool:
        """Looks for files that are gone or short, and at broken ones once more; tells whether any has broken or healed.

        A file may lie unread for long while others count on it. Raises KafkaStorageException. [OL-01]
        """
        with self._lock:
            before, segments = set(self._state.broken), dict(self.refresh().segments)
        faults = find_faults(self.root, segments)
        with self._lock:
            self.refresh().break_segments(faults)
        self.heal()
        return set(self._state.broken) != before

    def report_broken(self, name: str, fault: str) -> None:
        """Whoever has read a segment in vain says so: what is in it is refused from now on. [OL-01]"""
        with self._lock:
            self._state.break_segments({name: fault})

    def heal(self) -> None:
        """Takes in broken files that can be read again. Reads them without the lock; under it, skips those whose fault
        has changed meanwhile and reads no file. [OL-01]"""
        before = self._state.broken
        read = {name: segment for name, found in before.items() if (segment := read_again(self.root, found))}
        with self._lock:
            broken = self._state.broken
            healed = {name: segment for name, segment in read.items() if broken.get(name) is before[name]}
            still = {name: found for name, found in broken.items() if name not in healed}
            if healed:
                unread = {name: found for name, found in still.items() if found.partitions is None}
                self._known_segments = {**self._state.segments, **unread, **healed}
                try:
                    self._rebuild({name: found.fault for name, found in still.items() if name not in unread})
                finally:
                    self._known_segments.clear()

    def _segments(self, files: Iterable[AddedFile]) -> list[Segment | BrokenSegment]:
        """Headers of added files: known, or read from their footers."""
        read = read_segments(self.root, [file for file in files if file.name not in self._known_segments])
        found = {segment.file.name: segment for segment in read}
        return [self._known_segments.get(file.name) or found[file.name] for file in files]

    def transact(self, cause: Mapping[str, Any], decide: Decision, deadline: float | None = None) -> int | None:
        """Commits what `decide` makes of the newest state; asks it again as often as another commit comes between.

        Returns the version, None if there was nothing to do. What cannot be told is decided anew on what is there then.
        Raises what `decide` raises, KafkaStorageException, and TimeoutException where others win until the deadline.
        """

        def attempt() -> int | None:
            with self._lock:
                change = decide(self.refresh())
                return None if change is None else self._commit(cause, change)

        return compare_and_set(self.root.uri, attempt, deadline)

    def _commit(self, cause: Mapping[str, Any], change: LogChange) -> int:
        check_change(self.root, self._state, change)
        self._known_segments.update({segment.name: segment for segment in change.adds})
        added = [segment.file for segment in change.adds]
        removed = [segment.file for segment in change.removes]
        txns = {**start_chains(self._state, change), **change.txns}
        version = self._log.commit(cause, added, removed, txns, data_change=change.data_change)
        self._replay()
        return version

    def claim(self, broker_epoch: int) -> None:
        """Makes this process the only one that may write as the log's broker: older ones stop at their next refresh.

        Raises StaleBrokerEpochException if a newer one has claimed it.
        """
        self._broker_epoch = broker_epoch
        self.transact(
            {"who": "broker", "why": "claim", "broker_epoch": broker_epoch},
            lambda state: LogChange(txns={BROKER_EPOCH: broker_epoch}) if state.broker_epoch < broker_epoch else None,
        )

    def become(self, roles: Mapping[TopicIdPartition, Role], why: str) -> int | None:
        """Records roles, in one commit; from it on, an append under an older epoch loses and finds out why.

        A new leader's epoch starts at its LEO [EP-05]. Roles never go back: those that would are left out.
        """

        def decide(state: LogState) -> LogChange | None:
            newer = {p: role for p, role in roles.items() if role_version(role) > role_version(state.known(p).role)}
            txns = {role_app_id(p): role_version(role) for p, role in newer.items()}
            starts = {
                start_app_id(p): state.partition(p).log_end_offset for p, role in newer.items() if role.kind == LEADER
            }
            return LogChange(txns={**txns, **starts}) if newer else None

        return self.transact({"who": "broker", "why": why}, decide)

    def read(self, partition: TopicIdPartition, start: int, end: int | None = None) -> pa.Table:
        """The records of a partition from offset `start` to before `end` (its LEO if not given), in order.

        Raises OffsetOutOfRangeException below the log start or above the LEO.
        """
        log = self.refresh().partition(partition)
        stop = log.log_end_offset if end is None else end
        if not log.log_start_offset <= start <= log.log_end_offset:
            raise OffsetOutOfRangeException(
                f"{partition}: offset {start} is not within {log.log_start_offset} to {log.log_end_offset}"
            )
        names = dict.fromkeys(b.segment for b in log.batches if b.header.next_offset > start and b.base_offset < stop)
        tables = [rows_of(read_records(self.root, name), partition, start, stop) for name in names]
        return pa.concat_tables([LOG.arrow.empty_table(), *tables]).sort_by("offset")
