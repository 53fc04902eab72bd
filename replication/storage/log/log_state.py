"""The state of a log table, replayed commit by commit by its broker, its producers and its readers.

Every writer of a log decides on this state (`Decision`), and commits its `LogChange` at the version that it has
replayed. `LogState` changes only by replaying commits. With a `LogMark` a reader finds the partitions that have
changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import Lock
from typing import NamedTuple, Protocol, TypeAlias

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.partition_log import NO_REPAIR, STOPPED, PartitionLog, PlacedBatch, role_version
from lakelog.replication.protocol.record_batch import BatchHeader, OffsetRange, TopicIdPartition
from lakelog.replication.storage.delta.commit import Commit
from lakelog.replication.storage.delta.data_file_name import is_data_file
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import BrokenSegment
from lakelog.replication.storage.log.log_txns import (
    BROKER_EPOCH,
    GENERATION,
    app_ids,
    chain_txns,
    cleaned_txn,
    may_go_back,
    partition_of,
    record,
    touched_partitions,
)
from lakelog.replication.storage.log.producer_snapshot import by_partition
from lakelog.replication.storage.log.segment import Segment, size_fault

_COMMITS = 200  # that are remembered: a reader that is further behind reads all partitions

# The work of a writer, which `ReplicaLog.transact` calls on the state that it has replayed, again after each lost
# commit: the change to commit, None if there is nothing to do. It raises to refuse.
Decision: TypeAlias = "Callable[[LogState], LogChange | None]"


class RecentChanges:
    """The partitions of the last commits since a log was rebuilt. One thread notes commits, any thread reads."""

    def __init__(self) -> None:
        self._commits: tuple[tuple[int, frozenset[TopicIdPartition]], ...] = ()  # replaced, never changed in place

    def note(self, version: int, partitions: Iterable[TopicIdPartition]) -> None:
        """Notes the partitions of a commit. Call it before any of their logs changes."""
        self._commits = (*self._commits[1 - _COMMITS :], (version, frozenset(partitions)))

    def after(self, version: int) -> Collection[TopicIdPartition] | None:
        """The partitions that commits after this version have touched; None if not all of them are remembered."""
        newer = [commit for commit in self._commits if commit[0] > version]
        if newer and newer[0][0] > version + 1:
            return None
        return {partition for _, partitions in newer for partition in partitions}


class RecordsChanges(Protocol):
    """The state of a log, as far as `LogMark` needs it."""

    version: int
    changes: RecentChanges


class LogMark(NamedTuple):
    """The version of a log up to which a reader has read it."""

    version: int
    changes: RecentChanges

    @classmethod
    def of(cls, state: RecordsChanges) -> LogMark:
        """The mark of a state. Take it before you read logs of the state, because commits may be added to it."""
        return cls(state.version, state.changes)

    def changed(self, now: LogMark) -> Collection[TopicIdPartition] | None:
        """The partitions whose logs may have changed from this mark to `now`, or later; None if any may."""
        return now.changes.after(self.version) if now.changes is self.changes else None


@dataclass(frozen=True)
class LogChange:
    """The changes of one commit: added and removed segments, and facts that must last (`txn`).

    If `data_change` is false, the same batches move to other segments, and followers need not know; the log cleaner may
    have removed records of them. If it is true, batches go with the segments in `removes`; if there are any removes,
    `adds` bring no new ones.
    """

    adds: tuple[Segment, ...] = ()
    removes: tuple[Segment, ...] = ()
    txns: Mapping[str, int] = field(default_factory=dict)
    data_change: bool = True


def start_chains(state: LogState, change: LogChange) -> dict[str, int]:
    """The `txn`s that keep the chain of a log's start when its first batch goes."""
    kept = {header for segment in change.adds for header in segment.headers}
    going = {header for segment in change.removes for header in segment.headers} - kept
    txns: dict[str, int] = {}
    for partition in {header.topic_id_partition for header in going}:
        log = state.known(partition)
        chain = log.chain_at(log.log_start_offset)
        if chain is not None and log.batches and log.batches[0].header in going:
            txns.update(chain_txns(partition, chain))
    return txns


def cleaned_txns(state: LogState, change: LogChange) -> dict[str, int]:
    """The `txn`s by which the log cleaner goes through a log again from where batches go, since others may follow in
    their place. Otherwise it would take a tombstone away before the older records of its key. [LC-01]"""
    if not change.data_change or not change.removes:
        return {}
    kept = {(h.topic_id_partition, h.base_offset) for segment in change.adds for h in segment.headers}
    gone: dict[TopicIdPartition, set[int]] = {}
    for header in (header for segment in change.removes for header in segment.headers):
        if (header.topic_id_partition, header.base_offset) not in kept:
            gone.setdefault(header.topic_id_partition, set()).add(header.base_offset)
    txns: dict[str, int] = {}
    for partition, offsets in gone.items():
        log = state.known(partition)
        if log.cleaned_to and (end := log.end_without(offsets)) < log.cleaned_to:
            txns.update(cleaned_txn(partition, end))
    return txns


def check_change(root: StorageRoot, state: LogState, change: LogChange) -> None:
    """Checks what a commit would write as it is given.

    Raises CorruptRecordException if a file is added twice, unknown, missing or of a wrong size, if a fact goes back, or
    if a compaction does not keep every batch.
    """
    names = [segment.name for segment in change.adds]
    doubled = [name for name in names if name in state.segments or names.count(name) > 1]
    unknown = [segment.name for segment in change.removes if segment.name not in state.segments]
    rising = [(a, v) for a, v in change.txns.items() if not may_go_back(a)]
    lowered = [a for a, v in rising if v < state.recorded(a)]
    if doubled or unknown or lowered:
        raise CorruptRecordException(
            f"{root.uri}: refused a commit: added twice {doubled}, unknown {unknown}, going back {lowered}"
        )
    if not change.data_change and _headers(change.adds) != _headers(change.removes):
        raise CorruptRecordException(f"{root.uri}: refused a compaction that does not keep every batch")
    # A store has just answered the put of a file whose content is in hand, and what it has answered is there.
    looked_up = [segment for segment in change.adds if root.is_local or segment.file.content is None]
    for segment, size in zip(looked_up, root.sizes([segment.name for segment in looked_up]), strict=True):
        fault = size_fault(root, segment.file, size)
        if fault:
            raise CorruptRecordException(f"refused a commit: {fault}")


def _headers(segments: Iterable[Segment]) -> Counter[BatchHeader]:
    return Counter(header for segment in segments for header in segment.headers)


def _refuse(_: TopicIdPartition, error: CorruptRecordException) -> None:
    raise error


class LogState:
    """All partitions of one log table at one version.

    `broken` has the segments that cannot be read; the log of a partition that they may hold is incomplete. `unsound`
    has the partitions whose batches do not form a log, with the reason. `to_repair` has the partitions with a
    `repair_from`: their logs are used like any other. All three are replaced and never changed in place, because other
    threads read them. [OL-01]
    """

    def __init__(self, transaction_version: Callable[[str], int | None]) -> None:
        self.version, self.broker_epoch, self.generation = -1, -1, 0
        self.segments: dict[str, Segment] = {}
        self.broken: dict[str, BrokenSegment] = {}
        self.unsound: dict[TopicIdPartition, str] = {}
        self.to_repair: frozenset[TopicIdPartition] = frozenset()
        self._noting = Lock()
        self.changes = RecentChanges()
        self._partitions: dict[TopicIdPartition, PartitionLog] = {}
        # Names by id. Others add names: headers have none of a topic whose segments are all broken.
        self.topics: dict[str, str] = {}
        self._transaction_version = transaction_version

    def partition(self, partition: TopicIdPartition) -> PartitionLog:
        """The partition's log; an empty one if the table has no record of it.

        Raises CorruptRecordException, naming the file, if a broken segment may hold records of it, or if a batch does
        not follow the one before it. [OL-01]
        """
        if (fault := self.fault(partition)) is not None:
            raise CorruptRecordException(fault)
        return self.known(partition)

    def known(self, partition: TopicIdPartition) -> PartitionLog:
        """The known part of the partition's log, also with broken segments: its broker must be able to stop it."""
        known = self._partitions.get(partition)
        return known if known is not None else self._recall(partition)

    def segments_with(self, partition: TopicIdPartition, offsets: OffsetRange) -> list[Segment]:
        """The segments that have records of a partition at these offsets, in order, as far as `known` has them."""
        batches = self.known(partition).batches_between(*offsets)
        return [self.segments[name] for name in dict.fromkeys(batch.segment for batch in batches)]

    def fault(self, partition: TopicIdPartition) -> str | None:
        """The fault of the partition's segments, None if they have none."""
        return self._broken_fault(partition, self.broken) or self.unsound.get(partition)

    def _broken_fault(self, partition: TopicIdPartition, broken: Mapping[str, BrokenSegment]) -> str | None:
        topic = self.topics.get(partition.topic_id)
        return next((b.fault for b in broken.values() if b.may_hold(partition, topic)), None)

    def faulty(self) -> frozenset[object]:
        """The files and partitions with a fault, or to repair. This set changes whenever one of them does."""
        return frozenset(self.broken) | frozenset(self.unsound) | frozenset(("repair", p) for p in self.to_repair)

    def broken_for_nobody(self, hosted: Collection[TopicIdPartition] = ()) -> list[Segment]:
        """The broken segments that hold only stopped partitions. They may go: no replica of this broker needs them."""
        names = [n for n, broken in self.broken.items() if is_data_file(n) and not self.holders(broken, hosted)]
        return [self.segments[name] for name in names]

    def holders(self, broken: BrokenSegment, hosted: Collection[TopicIdPartition] = ()) -> set[TopicIdPartition]:
        """The partitions, also of `hosted`, that are not stopped here and may have records in a broken segment."""
        known = dict(self._partitions)  # a copy: other threads may be adding new ones
        wanted = [p for p in {*known, *hosted} if self.known(p).role.kind != STOPPED]
        return {p for p in wanted if broken.may_hold(p, self.topics.get(p.topic_id))}

    def break_segments(self, faults: Mapping[str, str]) -> None:
        """Marks segments as broken that could be read before; the content of their headers stays known. A segment that
        is broken already gets a new entry, so a check that began earlier cannot heal it."""
        for name, fault in faults.items():
            if name in self.segments:
                held = frozenset(header.topic_id_partition for header in self.segments[name].headers)
                known = self.broken.get(name, BrokenSegment(self.segments[name].file, fault, held))
                self.broken = {**self.broken, name: replace(known, fault=fault)}

    def partitions(self) -> list[TopicIdPartition]:
        """The partitions that were looked up or have records in the log, but for those that were given up."""
        return sorted(self._partitions)

    def give_up_stopped(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Drops the logs of stopped partitions without batches: `known` loads their facts again from `txn`s.

        Otherwise every topic that was ever deleted would stay in memory. [SR-02]
        """
        given_up = set[str]()
        for partition in partitions:
            log = self._partitions.get(partition)
            if log is not None and log.role.kind == STOPPED and not log.batches and not log.forgotten:
                self._partitions.pop(partition, None)
                given_up.add(partition.topic_id)
        if given_up:
            given_up -= {partition.topic_id for partition in dict(self._partitions)}
            self.topics = {topic_id: name for topic_id, name in self.topics.items() if topic_id not in given_up}

    def _recall(self, partition: TopicIdPartition) -> PartitionLog:
        """Loads a partition at its first use. Its facts outlive the commits that wrote them, as `txn`."""
        log = PartitionLog(start_chain=genesis(partition))
        for app_id in app_ids(partition):
            if (version := self._transaction_version(app_id)) is not None:
                record(log, app_id, version)
        known = self._partitions.setdefault(partition, log)  # complete, as other threads may look it up too
        self._note_repair(partition, known)
        return known

    def rebuild(
        self, version: int, segments: Iterable[Segment | BrokenSegment], asked: Iterable[TopicIdPartition] = ()
    ) -> None:
        """Starts over from the active files of a version. `asked`: partitions that may be in broken segments only."""
        self.segments, self.broken, self.unsound, self._partitions, self.changes = {}, {}, {}, {}, RecentChanges()
        self.to_repair = frozenset()
        claimed = self._transaction_version(BROKER_EPOCH)
        self.broker_epoch = -1 if claimed is None else claimed
        self.generation = self._transaction_version(GENERATION) or 0
        self._place(segments, self._note_unsound)
        for partition in asked:
            self.known(partition)
        self.give_up_stopped(self.partitions())
        self.version = version

    def _note_unsound(self, partition: TopicIdPartition, error: CorruptRecordException) -> None:
        self.unsound = {**self.unsound, partition: str(error)}

    def _check(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Checks partitions without broken segments. One with a broken segment has gaps, and is refused anyway."""
        for partition in partitions:
            if self._broken_fault(partition, self.broken) is None:
                try:
                    self.known(partition).check(partition)
                except CorruptRecordException:
                    if partition not in self.unsound:
                        raise
                else:
                    self.unsound = {p: fault for p, fault in self.unsound.items() if p != partition}

    def after(self, commit: Commit, added: Sequence[Segment | BrokenSegment]) -> LogState:
        """The state after a commit; `added` are the segments of its added files, with their headers.

        A plain append changes this state. Any other commit makes a new state, because other threads may be reading this
        one: they must not see a log that has lost its end for a moment, or an epoch without its start.
        """
        is_append = not commit.removes and not commit.txns and not self.unsound
        known = (self.segments.get(file.name) for file in commit.removes)
        touched = touched_partitions(commit, (*known, *added))
        self.changes.note(commit.version, touched)
        state = self if is_append else self._without_sharing(touched)
        # Another tool's word for it is not enough: whoever opens the log anew misses the batches that it has removed.
        moves = not commit.is_foreign and not any(file.data_change for file in commit.removes)
        is_compaction = bool(commit.removes) and moves
        if is_compaction and not state.broken and all(isinstance(segment, Segment) for segment in added):
            state._relocate(commit, added)
        else:
            state._apply(commit, added)
        return state

    def _without_sharing(self, partitions: Iterable[TopicIdPartition]) -> LogState:
        """A copy that shares only the partitions that do not change."""
        state = copy(self)
        state.segments, state.broken = dict(self.segments), dict(self.broken)
        copies = {p: self._partitions[p].copy() for p in partitions if p in self._partitions}
        state._partitions = {**self._partitions, **copies}
        return state

    def _relocate(self, commit: Commit, added: Iterable[Segment | BrokenSegment]) -> None:
        """Moves the same batches to other segments. Nothing else changes, so the length of the log does not matter."""
        for file in commit.removes:
            self.segments.pop(file.name, None)
        for segment in added:
            if isinstance(segment, BrokenSegment):
                self._place([segment])
                continue
            self.segments[segment.name] = segment
            placed = (PlacedBatch(h.base_offset, h, segment.name) for h in segment.headers)
            for partition, batches in groupby(placed, key=lambda batch: batch.header.topic_id_partition):
                self.known(partition).relocate(batches)
        for app_id, version in commit.txns.items():
            self._apply_transaction(app_id, version)
        self.version = commit.version

    def _apply(self, commit: Commit, added: Iterable[Segment | BrokenSegment]) -> None:
        touched = self._drop(file.name for file in commit.removes)
        for app_id, version in commit.txns.items():
            self._apply_transaction(app_id, version)
        touched |= self._place(added, None if commit.removes else _refuse)
        self._check(touched if commit.removes else touched & self.unsound.keys())  # a gap may have been filled
        if commit.removes or commit.txns:  # otherwise other threads may be reading this state
            self.give_up_stopped(touched | {p for p in map(partition_of, commit.txns) if p is not None})
        self.version = commit.version

    def _place(
        self, segments: Iterable[Segment | BrokenSegment],
        when_unsound: Callable[[TopicIdPartition, CorruptRecordException], None] | None = None,
    ) -> set[TopicIdPartition]:  # fmt: skip
        """Adds segments, ordered by offsets; the order of files in a commit has no meaning.

        `when_unsound` is called for batches that do not follow the end of their log; without it they are not checked.
        Checks and look-ups of logs come first: if one fails, nothing was added.
        """
        given = list(segments)
        whole = [found for found in given if isinstance(found, Segment)]
        placed = [PlacedBatch(h.base_offset, h, segment.name) for segment in whole for h in segment.headers]
        producers = {p.topic_id_partition for segment in whole for p in segment.producers}
        batches: dict[TopicIdPartition, list[PlacedBatch]] = {}
        for batch in sorted(placed, key=lambda batch: batch.base_offset):
            batches.setdefault(batch.header.topic_id_partition, []).append(batch)
        logs = {partition: self.known(partition) for partition in (*batches, *producers)}
        broken = {found.file.name: found for found in given if isinstance(found, BrokenSegment)}
        broken = {**self.broken, **broken} if broken else self.broken
        for partition, added in batches.items():
            if when_unsound and partition not in self.unsound and self._broken_fault(partition, broken) is None:
                try:
                    logs[partition].check(partition, added)
                except CorruptRecordException as error:
                    when_unsound(partition, error)
        self.broken = broken
        self.segments.update({f.file.name: f if isinstance(f, Segment) else Segment(f.file, ()) for f in given})
        self.topics.update({batch.header.topic_id: batch.header.topic for batch in placed})
        self._remember(producers)
        for partition, added in batches.items():
            logs[partition].place(added)
        return set(batches)

    def _drop(self, names: Iterable[str]) -> set[TopicIdPartition]:
        """Removes segments, all of a partition at once, to rebuild what depends on its batches only once."""
        gone_names = set(names)
        removed = [segment for segment in (self.segments.pop(name, None) for name in gone_names) if segment]
        self.broken = {name: found for name, found in self.broken.items() if name not in gone_names}
        names_of: dict[TopicIdPartition, set[str]] = {}
        for segment in removed:
            for header in segment.headers:
                names_of.setdefault(header.topic_id_partition, set()).add(segment.name)
        for partition, dropped in names_of.items():
            self.known(partition).drop(dropped)
        self._remember({p.topic_id_partition for segment in removed for p in segment.producers})
        return set(names_of)

    def _remember(self, partitions: Collection[TopicIdPartition]) -> None:
        """Lets partitions remember the producers that the snapshots have. One may not have been readable when the next
        one was written: then both are there."""
        if partitions:
            producers = by_partition(p for segment in self.segments.values() for p in segment.producers)
            for partition in partitions:
                self.known(partition).remember(producers.get(partition, {}))

    def recorded(self, app_id: str) -> int:
        """The replayed value of a fact that only goes up: the broker's claim, the generation, or a role. A stray
        replica may take the role again that it had before. [SR-02]"""
        if app_id in (BROKER_EPOCH, GENERATION):
            return self.broker_epoch if app_id == BROKER_EPOCH else self.generation
        partition = partition_of(app_id)
        assert partition is not None, f"{app_id} is not a fact that only goes up"
        return role_version(self.known(partition).role.before_stray)

    def _apply_transaction(self, app_id: str, version: int) -> None:
        if app_id == BROKER_EPOCH:
            self.broker_epoch = max(self.broker_epoch, version)
            return
        if app_id == GENERATION:
            self.generation = max(self.generation, version)
            return
        partition = partition_of(app_id)
        if partition is not None:
            record(self.known(partition), app_id, version)
            self._note_repair(partition, self.known(partition))

    def _note_repair(self, partition: TopicIdPartition, log: PartitionLog) -> None:
        with self._noting:  # threads may look up different partitions at the same time
            if log.repair_from == NO_REPAIR:
                self.to_repair -= {partition}
            else:
                self.to_repair |= {partition}
