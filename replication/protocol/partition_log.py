"""The log of one partition, as the log table's commits describe it: batches, lineage, producers and role.

Brokers, followers and producers all decide on this state. It changes only by the replay of commits, so the same commits
give the same log everywhere. Kafka: `UnifiedLog`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol import leader_epoch as epochs
from lakelog.replication.protocol.leader_epoch import EpochEntry
from lakelog.replication.protocol.producer_state import ProducerEntry, record, truncate_from_end
from lakelog.replication.protocol.record_batch import NO_PRODUCER_ID, BatchHeader, LogEnd, TopicIdPartition

# Within one leader epoch a role only rises. So a fenced leader, whose process has ended, or a stopped replica returns
# only under a later epoch.
FOLLOWER, LEADER, FENCED, STOPPED = 1, 2, 3, 4
_STRAY = 4  # a stray replica's kind is that of its role before plus this number: it takes nothing, and keeps its role
STRAY = "stray"
_ROLES = 8  # multiplier of the leader epoch in `role_version`


class Role(NamedTuple):
    """A broker's role for a partition, as its log records it, and the leader epoch of that role."""

    leader_epoch: int
    kind: int

    @property
    def is_leader(self) -> bool:
        """Whether the log accepts appends under `leader_epoch`."""
        return self.kind == LEADER

    def leads_at(self, leader_epoch: int) -> bool:
        """Whether the log leads under exactly this leader epoch."""
        return self == (leader_epoch, LEADER)

    def follows_at(self, leader_epoch: int) -> bool:
        """Whether the log follows under exactly this leader epoch."""
        return self == (leader_epoch, FOLLOWER)

    @property
    def is_stray(self) -> bool:
        """Whether no metadata explain the replica: its log takes nothing and keeps everything. [SR-02]"""
        return self.kind > STOPPED

    @property
    def before_stray(self) -> Role:
        """The role that a stray replica had before; any other role is itself."""
        return Role(self.leader_epoch, self.kind - _STRAY) if self.is_stray else self

    def as_stray(self) -> Role:
        """The role of the replica as a stray one. A stopped replica stays stopped: its records are to go."""
        return self if self.kind >= STOPPED else Role(self.leader_epoch, self.kind + _STRAY)

    @property
    def name(self) -> str:
        """The role in words."""
        names = {FOLLOWER: "follower", LEADER: "leader", FENCED: "fenced", STOPPED: "stopped"}
        return names.get(self.kind, STRAY)


NO_ROLE = Role(-1, STOPPED)
NO_REPAIR = -1  # of a log whose records are as they should be, as far as anybody has noted


def role_version(role: Role) -> int:
    """A role as one number, leader epoch x 8 + kind, which only rises."""
    return role.leader_epoch * _ROLES + role.kind


def may_become(before: Role, role: Role) -> bool:
    """Whether a log with the role `before` takes a role. Roles only rise; but a stray replica takes its old role again
    once the metadata explain it. [SR-02]"""
    if before.is_stray:
        return role != before and role_version(role) >= role_version(before.before_stray)
    return role_version(role) > role_version(before)


def role_of(version: int) -> Role:
    """The role with this number; the inverse of `role_version`."""
    return Role(*divmod(version, _ROLES))


class PlacedBatch(NamedTuple):
    """A batch header, and the segment with the batch. Batches sort by their base offset."""

    base_offset: int
    header: BatchHeader
    segment: str


@dataclass
class PartitionLog:
    """One partition's log: its batches in order of offsets, its lineage and its producers.

    `batches` may begin below the log start, as long as their segments exist. No reader gets records there, but they
    still identify duplicates of their producers. `forgotten`: the entries of producers whose batches went with their
    segments. `start_chain`: the chain of the records before the log start, recorded for a log without batches.
    `epoch_start`: the offset at which a leader's epoch starts. `repair_from`: the offset from which on an operator has
    found wrong records, so that their broker fetches them again once it follows another one; -1 for none. [OL-01]
    `cleaned_to`: the offset up to which the log cleaner has been through the log. [LC-01]
    """

    batches: list[PlacedBatch] = field(default_factory=list)
    log_start_offset: int = 0
    start_chain: str = ""
    role: Role = NO_ROLE
    epoch_start: int = 0
    repair_from: int = NO_REPAIR
    cleaned_to: int = 0
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    forgotten: Mapping[int, ProducerEntry] = field(default_factory=dict)
    _lineage: tuple[EpochEntry, ...] = ()

    @property
    def log_end_offset(self) -> int:
        """LEO: the next offset to write. It is at least the log start, even if only batches below that are left."""
        end = self.batches[-1].header.next_offset if self.batches else 0
        return max(end, self.log_start_offset)

    @property
    def log_end(self) -> LogEnd:
        """The LEO, and the chain before it."""
        return LogEnd(self.log_end_offset, self.batches[-1].header.chain if self.batches else self.start_chain)

    @property
    def first_offset(self) -> int:
        """The base offset of the first batch, else the log start. It is above the log start only if a file is
        broken."""
        return self.batches[0].base_offset if self.batches else self.log_start_offset

    def chain_at(self, offset: int) -> str | None:
        """The chain of all batches that end at or before `offset`; None if the log does not know it.

        An offset within a batch has the chain before that batch, also if the log start lies there.
        """
        if not self.first_offset <= offset <= self.log_end_offset:
            return None
        following = bisect_right(self.batches, offset, key=lambda placed: placed.header.next_offset)
        if following:
            return self.batches[following - 1].header.chain
        return self.batches[0].header.previous if self.batches else self.start_chain

    def batches_between(self, start: int, stop: int) -> list[PlacedBatch]:
        """The batches with records from offset `start` to before `stop`, in order."""
        first = bisect_right(self.batches, start, key=lambda placed: placed.header.next_offset)
        end = bisect_left(self.batches, stop, key=lambda placed: placed.base_offset)
        return self.batches[first:end] if start < stop else []

    def boundary_at(self, offset: int) -> int:
        """The largest batch boundary at or below `offset`."""
        following = bisect_right(self.batches, offset, key=lambda placed: placed.header.next_offset)
        return self.batches[following - 1].header.next_offset if following else self.first_offset

    @property
    def lineage(self) -> tuple[EpochEntry, ...]:
        """The lineage from the log start on. A leader's own epoch counts from its start, with or without records.
        [EP-04]"""
        whole = self._lineage
        if self.role.is_leader:
            chain = self.chain_at(self.epoch_start) or ""
            whole = epochs.assign(whole, self.role.leader_epoch, self.epoch_start, chain)
        return epochs.truncate_from_start(whole, self.log_start_offset, self.chain_at(self.log_start_offset) or "")

    def add(self, header: BatchHeader, segment: str) -> None:
        """Adds one batch."""
        self.place([PlacedBatch(header.base_offset, header, segment)])

    def place(self, batches: Iterable[PlacedBatch]) -> None:
        """Adds batches, given in order of offsets. Batches that do not go to the end are sorted in."""
        added = list(batches)
        if not added:
            return
        if added[0].base_offset >= self.log_end_offset:
            for batch in added:
                self._follow(batch.header)
            self.batches += added  # last: a concurrent reader sees no offset without its epoch
        else:
            self.batches = sorted([*self.batches, *added], key=lambda batch: batch.base_offset)
            self._derive()

    def relocate(self, batches: Iterable[PlacedBatch]) -> None:
        """Takes over the new segments of batches, after a compaction. Raises CorruptRecordException for an unknown
        batch."""
        moved = list(self.batches)
        for batch in batches:
            index = bisect_left(moved, batch.base_offset, key=lambda placed: placed.base_offset)
            if index == len(moved) or moved[index].header != batch.header:
                raise CorruptRecordException(
                    f"{batch.segment}: its batch at offset {batch.base_offset} is not in the log"
                )
            moved[index] = batch
        self.batches = moved

    def drop(self, segments: Collection[str]) -> None:
        """Removes the batches of these segments."""
        self.batches = [batch for batch in self.batches if batch.segment not in segments]
        self._derive()

    def start_at(self, offset: int) -> None:
        """Sets the log start. It falls only if the whole log was truncated."""
        falls = offset < self.log_start_offset
        self.log_start_offset = offset
        if falls:
            self._derive()

    def remember(self, producers: Mapping[int, ProducerEntry]) -> None:
        """Replaces the entries of producers whose batches were deleted with their segments."""
        self.forgotten = producers
        self._derive()

    def copy(self) -> PartitionLog:
        """A copy that can change independently."""
        return replace(self, batches=list(self.batches), producers=dict(self.producers))

    def _derive(self) -> None:
        known = {p: truncate_from_end(entry, self.log_start_offset) for p, entry in self.forgotten.items()}
        self._lineage, self.producers = (), {p: entry for p, entry in known.items() if entry is not None}
        for batch in self.batches:
            self._follow(batch.header)

    def _follow(self, header: BatchHeader) -> None:
        self._lineage = epochs.assign(self._lineage, header.leader_epoch, header.base_offset, header.previous)
        if header.producer_id != NO_PRODUCER_ID:
            self.producers[header.producer_id] = record(self.producers.get(header.producer_id), header)

    @property
    def sound_end(self) -> int:
        """The offset up to which the batches fit together: the LEO, or the base offset of the first batch that its
        successor does not continue."""
        for before, after in pairwise(self.batches):
            if not _follows(before.header, after.header):
                return before.base_offset
        return self.log_end_offset

    def end_without(self, gone: Collection[int]) -> int:
        """The offset up to which the log has all batches once those with these base offsets are gone."""
        following = (batch.header for batch in self.batches if batch.base_offset not in gone)
        first = next(following, None)
        if first is None:
            return self.log_start_offset
        end = first.next_offset
        for header in following:
            if header.base_offset != end:
                break
            end = header.next_offset
        return end

    def check(self, partition: TopicIdPartition, added: Sequence[PlacedBatch] = ()) -> None:
        """Raises CorruptRecordException unless each batch continues the one before it in offset, epoch and chain.

        Without `added` this checks the whole log, else only the batches `added`, which are to go to its end.
        """
        batches = [*self.batches[-1:], *added] if added else self.batches
        if batches and batches[0].base_offset > self.log_start_offset and not (added and self.batches):
            raise CorruptRecordException(
                f"{partition}: {batches[0].segment} begins at offset {batches[0].base_offset}, but the log starts at "
                f"{self.log_start_offset}"
            )
        for before, after in pairwise(batches):
            if not _follows(before.header, after.header):
                raise CorruptRecordException(
                    f"{partition}: {after.segment} begins at offset {after.base_offset}, but {before.segment} ends "
                    f"before {before.header.next_offset}; it has leader epoch {after.header.leader_epoch} after "
                    f"{before.header.leader_epoch}, and follows the chain {after.header.previous} where that of the "
                    f"log is {before.header.chain}"
                )


def _follows(before: BatchHeader, after: BatchHeader) -> bool:
    is_next = after.base_offset == before.next_offset and after.previous == before.chain
    return is_next and after.leader_epoch >= before.leader_epoch


def closed_roles(logs: Mapping[TopicIdPartition, PartitionLog]) -> dict[TopicIdPartition, Role]:
    """The roles that close logs to producers: leaders become fenced under their own epoch, which stays known."""
    return {p: Role(log.role.leader_epoch, FENCED) for p, log in logs.items() if log.role.is_leader}
