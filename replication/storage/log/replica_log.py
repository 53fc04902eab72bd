"""The log of a broker: one Delta table with the records of all its replicas.

Every change is decided on the replayed state and committed at exactly that version. The loser replays the winner's
commit and decides again. A change of role is a commit like any other, so it fences everything that was decided before
it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakelog.replication.errors import (
    CorruptRecordException,
    FencedClusterRootException,
    OffsetOutOfRangeException,
    StaleBrokerEpochException,
)
from lakelog.replication.protocol.broker_registration import LogIdentity
from lakelog.replication.protocol.partition_log import (
    FOLLOWER,
    LEADER,
    STOPPED,
    Role,
    closed_roles,
    may_become,
    role_of,
    role_version,
)
from lakelog.replication.protocol.record_batch import OffsetRange, TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile, Commit, Stamp
from lakelog.replication.storage.delta.commit_format import check_commits
from lakelog.replication.storage.delta.compare_and_set import CommitBackoff, compare_and_set
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import (
    BrokenSegment,
    Healing,
    find_faults,
    read_again,
    read_segments,
    with_statistics,
)
from lakelog.replication.storage.log.log_state import (
    Decision,
    LogChange,
    LogState,
    check_change,
    cleaned_txns,
    start_chains,
)
from lakelog.replication.storage.log.log_txns import (
    BROKER_EPOCH,
    GENERATION,
    LOG_EPOCH,
    Transactions,
    facts_of,
    partition_of,
    repair_txn,
    role_app_id,
    start_app_id,
)
from lakelog.replication.storage.log.segment import Segment, read_records, rows_of
from lakelog.schemas import LOG

logger = logging.getLogger(__name__)


class ReplicaLog:
    """A handle on a log table for its owner, a producer or a reader. Threads may share it.

    `generation`: that of the cluster root which this process uses. A log whose broker belongs to a newer one refuses
    the process. None for tools that look at a log without a cluster.
    """

    def __init__(self, log: DeltaLog, generation: int | None = None) -> None:
        self._log, self._txns, self._backoff = log, Transactions(log), CommitBackoff()
        self._lock = threading.RLock()
        self._broker_epoch: int | None = None
        self._generation = generation
        self._known_segments: dict[str, Segment | BrokenSegment] = {}
        self._unplaced: deque[Commit] = deque()  # commits that the table has replayed and the state has not
        self._healing = Healing(self.root.uri, self.heal)
        self.rewritten_at = -1  # the last commit that was replayed in which another tool has removed files
        self._is_doubtful = False  # the state may be of versions that are gone: it must be rebuilt
        self._state = LogState(self._transaction_version)
        self._rebuild()
        self._check_generation()

    @classmethod
    def create(cls, root: StorageRoot) -> ReplicaLog:
        """Creates an empty log table at `root`. Raises InconsistentClusterIdException if one exists."""
        return cls(DeltaLog.create(root, LOG))

    @classmethod
    def open(cls, root: StorageRoot, generation: int | None = None) -> ReplicaLog:
        """Opens a log and replays it. It refuses each partition with a broken file, and no other. [OL-01]

        Raises CorruptRecordException if offsets have gaps that no broken file explains, FencedClusterRootException if
        the broker belongs to a newer `generation` of the cluster root, and KafkaStorageException.
        """
        return cls(DeltaLog.open(root), generation)

    def _transaction_version(self, app_id: str) -> int | None:
        with self._lock:
            return self._txns.get(app_id)

    @property
    def root(self) -> StorageRoot:
        """The root of the table; names of segments are relative to it."""
        return self._log.root

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return self._log.table_id

    @property
    def identity(self) -> LogIdentity:
        """The identity of the log as last replayed, from memory."""
        with self._lock:
            return LogIdentity(self._log.table_id, self._log.version, self._log.unique_id or "")

    @property
    def is_of_older_generation(self) -> bool:
        """Whether the log, as last replayed, belongs to an older generation of the cluster root than this process uses:
        its broker has not used that root yet, or its own root was restored from a backup."""
        return self._generation is not None and self._state.generation < self._generation

    @property
    def stamp(self) -> Stamp | None:
        """The stamp of the commit of the replayed version; None if it was not seen."""
        return self._log.stamp

    def refresh(self, max_staleness: float | None = None) -> LogState:
        """Replays the commits since the last refresh and returns the state. A poll gives a `max_staleness`, see
        `DeltaLog.move`.

        Raises StaleBrokerEpochException if a newer process has claimed this process's log, FencedClusterRootException
        if the cluster root was recovered elsewhere, InconsistentBrokerRootException if the log lacks commits that were
        replayed, and KafkaStorageException.
        """
        return self._refresh(max_staleness if max_staleness is None else self.root.poll_staleness(max_staleness))

    def _refresh(self, max_staleness: float | None) -> LogState:
        with self._lock:
            self._replay(self._log.move(max_staleness))
            if self._state.broken:
                self._healing.begin_if_due()
            if self._broker_epoch is not None and self._state.broker_epoch > self._broker_epoch:
                why = f"a newer process of this broker has claimed it under epoch {self._state.broker_epoch}"
                raise StaleBrokerEpochException(f"{self.root.uri}: broker epoch {self._broker_epoch} is fenced: {why}")
            self._check_generation()
            return self._state

    def _check_generation(self) -> None:
        if self._generation is not None and self._state.generation > self._generation:
            raise FencedClusterRootException(
                f"{self.root.uri}: its broker belongs to generation {self._state.generation} of the cluster root, and "
                f"this process uses generation {self._generation}: the cluster root was recovered elsewhere. Use the "
                "new one, and delete the old one"
            )

    def current(self) -> LogState:
        """The state as last replayed. It neither reads the table nor waits for a refresh that is running."""
        return self._state

    def maintain(self) -> None:
        """Writes a checkpoint if one is due, to keep opening cheap; for the owner, from time to time.

        No commit is dropped while a partition is offline: they have the files that another tool has removed. [OL-01]
        """
        with self._lock:
            self._log.checkpoint_if_due(LOG.commits_kept, keeps_all=bool(self._state.faulty()))

    def _replay(self, commits: Sequence[Commit] | None) -> None:
        self._unplaced.extend(commits or ())
        for commit in commits or ():
            if commit.removes and commit.is_foreign:
                self.rewritten_at = commit.version
        self._is_doubtful |= commits is None or self._state.version + len(self._unplaced) != self._log.version
        try:
            while self._unplaced and not self._is_doubtful:  # a commit that fails stays, for the next refresh
                self._state = self._state.after(self._unplaced[0], self._segments(self._unplaced[0].adds))
                self._unplaced.popleft()
        except CorruptRecordException as error:  # rebuild from the files; if they are corrupt, that raises again
            logger.warning("%s: the replayed state is inconsistent, it is rebuilt: %s", self.root.uri, error)
            self._is_doubtful = True
        if self._is_doubtful:
            self._rebuild()
        self._known_segments.clear()

    def _rebuild(self, faults: Mapping[str, str] = {}) -> None:
        """Builds the state from the active files. `faults` has segments that were read before they broke. After a
        failure the next refresh rebuilds again."""
        self._is_doubtful = True
        self._unplaced.clear()
        check_commits(self.root, newest=1)
        segments = with_statistics(self.root, self._log.version, self._segments(self._log.active_files()))
        self._txns = Transactions(self._log)  # the version may be another commit now
        state = LogState(self._transaction_version)  # a new one: other threads may be reading the old one
        state.topics.update(self._state.topics)
        state.rebuild(self._log.version, segments, self._state.partitions())
        state.break_segments(faults)
        self._state, self._is_doubtful = state, False

    def scrub(self) -> bool:
        """Checks all files for existence and size, and broken ones again, so that none breaks unnoticed.

        Returns whether one has broken or healed. Raises KafkaStorageException. [OL-01]
        """
        with self._lock:
            before, segments = set(self._state.broken), dict(self.refresh(LONGEST_SECONDS).segments)
        faults = find_faults(self.root, segments)
        with self._lock:
            (self.refresh() if faults else self._state).break_segments(faults)
        self.heal()
        return set(self._state.broken) != before

    def report_broken(self, name: str, fault: str) -> None:
        """Marks a segment that could not be read as broken; the log refuses its records from now on. [OL-01]"""
        with self._lock:
            self._state.break_segments({name: fault})

    def heal(self) -> None:
        """Adds broken files again that can be read now. It reads files without the lock. With the lock it reads none,
        and skips a file whose fault has changed meanwhile. [OL-01]"""
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
        """The headers of added files: known, or read from their footers."""
        read = read_segments(self.root, [file for file in files if file.name not in self._known_segments])
        found = {segment.file.name: segment for segment in read}
        return [self._known_segments.get(file.name) or found[file.name] for file in files]

    def transact(
        self,
        cause: Mapping[str, Any],
        decide: Decision,
        deadline: float | None = None,
        noop_staleness: float | None = None,
    ) -> int | None:
        """Commits the change that `decide` returns for the newest state; calls it again after each commit of others.

        Returns the version, None if there was nothing to do. With `storage.fsync` the log is durable in both cases.
        After an unknown outcome it decides again on the new state. Raises what `decide` raises, KafkaStorageException,
        and TimeoutException if others win until `deadline`, in seconds of the monotonic clock. `noop_staleness`: see
        `compare_and_set`.
        """

        def attempt(max_staleness: float | None) -> int | None:
            with self._lock:
                change = decide(self._refresh(max_staleness))
                if change is None:
                    self._log.sync()  # what is there already is acknowledged, too
                    return None
                return self._commit(cause, change)

        return compare_and_set(self.root, attempt, deadline, noop_staleness, self._backoff)

    def _commit(self, cause: Mapping[str, Any], change: LogChange) -> int:
        check_change(self.root, self._state, change)
        # A file without headers is broken: what is known of it is read with its statistics, as after any commit.
        known = [segment for segment in change.adds if segment.headers or segment.producers]
        self._known_segments.update({segment.name: segment.light for segment in known})
        added, removed = ([segment.file for segment in segments] for segments in (change.adds, change.removes))
        txns = {**start_chains(self._state, change), **cleaned_txns(self._state, change), **change.txns}
        expire = {app_id for app_id in txns if self._is_of_stopped(app_id, txns)}
        version = self._log.commit(cause, added, removed, txns, data_change=change.data_change, expire=expire)
        self._replay([self._log.move_own()])
        return version

    def _is_of_stopped(self, app_id: str, txns: Mapping[str, int]) -> bool:
        """Whether a `txn` is of a replica that is stopped, or stopped by these `txn`s, and may expire. The role of a
        stray replica that a person has deleted stays: metadata that count on it may come back at any time. [SR-03]"""
        partition = partition_of(app_id)
        if partition is None:
            return False
        role, given = self._state.known(partition).role, txns.get(role_app_id(partition))
        return (role if given is None else role_of(given)).kind == STOPPED and not role.is_stray

    @property
    def log_epoch(self) -> int | None:
        """The broker epoch since which the broker has this log, if the broker has noted it here."""
        return self._transaction_version(LOG_EPOCH)

    def claim(self, broker_epoch: int, log_epoch: int | None = None) -> None:
        """Makes this process the only one that may write as the log's broker: older ones stop at their next refresh.
        The log belongs to the generation of the cluster root from then on. `log_epoch`: the broker epoch since which
        the broker has this log.

        Raises StaleBrokerEpochException if a newer process has claimed the log, FencedClusterRootException, and
        KafkaStorageException.
        """
        self._broker_epoch = broker_epoch
        with self._lock:
            self._log.recover()

        def decide(state: LogState) -> LogChange | None:
            if state.broker_epoch >= broker_epoch:
                return None
            txns = {BROKER_EPOCH: broker_epoch}
            if log_epoch is not None:
                txns[LOG_EPOCH] = log_epoch
            if (generation := self._generation or 0) > state.generation:
                txns[GENERATION] = generation
            return LogChange(txns=txns)

        self.transact({"who": "broker", "why": "claim", "broker_epoch": broker_epoch}, decide)
        self._log.hold()

    def close(
        self, broker_epoch: int, generation: int, partitions: Iterable[TopicIdPartition], cause: Mapping[str, Any],
        log_epoch: int | None = None,
    ) -> None:  # fmt: skip
        """Closes the log, in one commit, to all processes that use a cluster root of an older generation: brokers,
        producers and readers. It keeps under which leader epochs it led. `partitions`: those that may be in it without
        any record. `log_epoch`: the broker epoch since which the broker has this log; None leaves it as it is.

        Raises FencedClusterRootException if the log belongs to that generation or a newer one already.
        """
        asked = tuple(partitions)
        with self._lock:
            self._log.recover()

        def decide(state: LogState) -> LogChange:
            if state.generation >= generation:
                raise FencedClusterRootException(
                    f"{self.root.uri}: belongs to generation {state.generation} of the cluster root by now: "
                    "another recovery is under way; wait until it has ended"
                )
            roles = closed_roles({p: state.known(p) for p in {*state.partitions(), *asked}})
            txns = {role_app_id(p): role_version(role) for p, role in roles.items()}
            since = {} if log_epoch is None else {LOG_EPOCH: log_epoch}
            return LogChange(txns={BROKER_EPOCH: broker_epoch, GENERATION: generation, **since, **txns})

        self.transact(cause, decide)

    def become(self, roles: Mapping[TopicIdPartition, Role], why: str) -> int | None:
        """Records roles in one commit. From then on, an append under an older epoch loses, and its error names the
        reason.

        A new leader's epoch starts at its LEO [EP-05]. Roles never go back, so older ones are left out. A stray replica
        takes up its role of before where it was. The facts of a stopped replica expire, so all of them are written
        again when it stops, and when it returns. [SR-02]
        """

        def decide(state: LogState) -> LogChange | None:
            newer = {p: role for p, role in roles.items() if may_become(state.known(p).role, role)}
            txns = {role_app_id(p): role_version(role) for p, role in newer.items()}
            for partition, role in newer.items():
                log = state.known(partition)
                if STOPPED in (role.kind, log.role.kind):
                    txns.update(facts_of(partition, log))
                if role.kind == LEADER and log.role.before_stray != role:
                    txns[start_app_id(partition)] = state.partition(partition).log_end_offset
                if partition in state.to_repair and role.kind != FOLLOWER:  # others fetch from it, or nobody does
                    txns.update(repair_txn(partition))
            return LogChange(txns=txns) if newer else None

        return self.transact({"who": "broker", "why": why}, decide)

    def read(self, partition: TopicIdPartition, start: int, end: int | None = None) -> pa.Table:
        """The records of a partition from offset `start` to before `end` (default: its LEO), in order. Columns:
        `schemas.LOG`.

        Raises OffsetOutOfRangeException below the log start or above the LEO, CorruptRecordException,
        KafkaStorageException.
        """
        state = self.refresh()
        log = state.partition(partition)
        stop = log.log_end_offset if end is None else end
        if not log.log_start_offset <= start <= log.log_end_offset:
            raise OffsetOutOfRangeException(
                f"{partition}: offset {start} is not within {log.log_start_offset} to {log.log_end_offset}"
            )
        segments = state.segments_with(partition, OffsetRange(start, stop))
        tables = [rows_of(read_records(self.root, each.name), partition, start, stop) for each in segments]
        return pa.concat_tables([LOG.arrow.empty_table(), *tables]).sort_by("offset")
