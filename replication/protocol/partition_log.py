"""One partition's part of a log, as its commits add up to: its batches, its lineage, its producers, its role.

Everybody who writes to a log decides on this: its broker, its followers, its producers. Nothing else changes it than
replaying what has landed, so that the same commits make the same log everywhere. Kafka: `UnifiedLog`.
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

# Within one leader epoch a role only goes up: a leader that is fenced, as its process has ended, or a replica that has
# been stopped comes back under a later epoch alone.
FOLLOWER, LEADER, FENCED, STOPPED = 1, 2, 3, 4
_ROLES = 8  # a role is recorded as one number, leader epoch x 8 + role, which only goes up


class Role(NamedTuple):
    """What the log's own history says its broker is of a partition, and since which leader epoch."""

    leader_epoch: int
    kind: int

    @property
    def is_leader(self) -> bool:
        """Whether the log is open for appends under `leader_epoch`."""
        return self.kind == LEADER

    def leads_at(self, leader_epoch: int) -> bool:
        """Whether the log is open for appends under exactly this leader epoch."""
        return self == (leader_epoch, LEADER)

    def follows_at(self, leader_epoch: int) -> bool:
        """Whether the log follows under exactly this leader epoch."""
        return self == (leader_epoch, FOLLOWER)

    @property
    def name(self) -> str:
        """The role in words."""
        return {FOLLOWER: "follower", LEADER: "leader", FENCED: "fenced"}.get(self.kind, "stopped")


NO_ROLE = Role(-1, STOPPED)


def role_version(role: Role) -> int:
    """A role as a number that only goes up."""
    return role.leader_epoch * _ROLES + role.kind


def role_of(version: int) -> Role:
    """The role that a number stands for."""
    return Role(*divmod(version, _ROLES))


class PlacedBatch(NamedTuple):
    """A batch and the segment that holds it; in order of offsets."""

    base_offset: int
    header: BatchHeader
    segment: str


@dataclass
class PartitionLog:
    """One partition's part of a log: its batches in order, its lineage, its producers.

    A batch that lies below the log start, wholly or in part, is here as long as its segment is: nobody reads below the
    log start, but what its producer has sent is still known. `forgotten` is what was known of producers whose batches
    have gone with their segments. `start_chain` is the chain of all that lies before the log start, as it is recorded
    for a log without batches.
    """

    batches: list[PlacedBatch] = field(default_factory=list)
    log_start_offset: int = 0
    start_chain: str = ""
    role: Role = NO_ROLE
    epoch_start: int = 0
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    forgotten: Mapping[int, ProducerEntry] = field(default_factory=dict)
    _lineage: tuple[EpochEntry, ...] = ()

    @property
    def log_end_offset(self) -> int:
        """LEO: the next offset to be written. Not below the log start, though only batches below it may be left."""
        end = self.batches[-1].header.next_offset if self.batches else 0
        return max(end, self.log_start_offset)

    @property
    def log_end(self) -> LogEnd:
        """LEO, and the chain of all that lies before it."""
        return LogEnd(self.log_end_offset, self.batches[-1].header.chain if self.batches else self.start_chain)

    @property
    def first_offset(self) -> int:
        """Where the first batch begins that is here: not above the log start, unless what lies between is broken."""
        return self.batches[0].base_offset if self.batches else self.log_start_offset

    def chain_at(self, offset: int) -> str | None:
        """The chain of all batches that end at or before `offset`; None where the log does not know it.

        An offset within a batch has the chain of what lies before the batch: so it has at a log start that was raised
        to the middle of one.
        """
        if not self.first_offset <= offset <= self.log_end_offset:
            return None
        following = bisect_right(self.batches, offset, key=lambda placed: placed.header.next_offset)
        if following:
            return self.batches[following - 1].header.chain
        return self.batches[0].header.previous if self.batches else self.start_chain

    def boundary_at(self, offset: int) -> int:
        """The largest offset at or below `offset` at which no batch is split."""
        following = bisect_right(self.batches, offset, key=lambda placed: placed.header.next_offset)
        return self.batches[following - 1].header.next_offset if following else self.first_offset

    @property
    def lineage(self) -> tuple[EpochEntry, ...]:
        """Which epoch wrote from which offset on, from the log start on; a leader's own epoch counts from its start,
        records or not. [EP-04]"""
        whole = self._lineage
        if self.role.is_leader:
            chain = self.chain_at(self.epoch_start) or ""
            whole = epochs.assign(whole, self.role.leader_epoch, self.epoch_start, chain)
        return epochs.truncate_from_start(whole, self.log_start_offset, self.chain_at(self.log_start_offset) or "")

    def add(self, header: BatchHeader, segment: str) -> None:
        """Takes one batch in."""
        self.place([PlacedBatch(header.base_offset, header, segment)])

    def place(self, batches: Iterable[PlacedBatch]) -> None:
        """Takes batches in, given in order of offsets; those that do not lie at the end are put in their places."""
        added = list(batches)
        if not added:
            return
        if added[0].base_offset >= self.log_end_offset:
            for batch in added:
                self._follow(batch.header)
            self.batches += added  # last: whoever looks meanwhile sees no offset without its epoch
        else:
            self.batches = sorted([*self.batches, *added], key=lambda batch: batch.base_offset)
            self._derive()

    def relocate(self, batches: Iterable[PlacedBatch]) -> None:
        """The same batches lie in other segments now. Raises CorruptRecordException if one is not among them."""
        moved = list(self.batches)
        for batch in batches:
            index = bisect_left(moved, batch.base_offset, key=lambda placed: placed.base_offset)
            if index == len(moved) or moved[index].header != batch.header:
                raise CorruptRecordException(f"{batch.segment} has a batch at offset {batch.base_offset} that is new")
            moved[index] = batch
        self.batches = moved

    def drop(self, segments: Collection[str]) -> None:
        """Forgets the batches of segments."""
        self.batches = [batch for batch in self.batches if batch.segment not in segments]
        self._derive()

    def start_at(self, offset: int) -> None:
        """The log starts at `offset` from now on. It only falls when all of the log was truncated."""
        falls = offset < self.log_start_offset
        self.log_start_offset = offset
        if falls:
            self._derive()

    def remember(self, producers: Mapping[int, ProducerEntry]) -> None:
        """What is known of producers whose batches have gone below the log start; it replaces what was remembered."""
        self.forgotten = producers
        self._derive()

    def copy(self) -> PartitionLog:
        """A log that may change without this one."""
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
        """Up to where the batches make a log: the LEO if all do, else where the first two begin that do not fit."""
        for before, after in pairwise(self.batches):
            if not _follows(before.header, after.header):
                return before.base_offset
        return self.log_end_offset

    def check(self, partition: TopicIdPartition, added: Sequence[PlacedBatch] = ()) -> None:
        """Raises CorruptRecordException unless each batch follows the one before it, in offsets, epoch and chain: those
        of the whole log, or batches that are to follow its end."""
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
