"""The lineage of a log: its leader epochs, each with its start offset. [EP-01]

A lineage is a tuple of `EpochEntry`, oldest first; epochs and start offsets both rise strictly. Each entry ends where
the next one starts. The last entry is open-ended, because the lineage does not know the LEO.

Kafka: `LeaderEpochFileCache`. KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class EpochEntry(NamedTuple):
    """A leader epoch, the offset of its first record (written or not yet), and the chain of the log before that
    offset."""

    leader_epoch: int
    start_offset: int
    chain: str = ""


Lineage = tuple[EpochEntry, ...]


def assign(lineage: Lineage, leader_epoch: int, start_offset: int, chain: str = "") -> Lineage:
    """The lineage after `leader_epoch` has begun at `start_offset`, where the log has this `chain`.

    The new entry replaces entries of the same or a later epoch, and entries that start at or after it. So an epoch
    without records leaves no entry, and both columns stay strictly rising. If the epoch is already the last one and
    starts at or before `start_offset`, nothing changes: each batch of a leader repeats its epoch.

    Kafka: `LeaderEpochFileCache.assign`. KIP-101. [EP-02]

    Raises:
        ValueError: the epoch or the offset is negative.
    """
    if leader_epoch < 0 or start_offset < 0:
        raise ValueError(f"epoch {leader_epoch} at offset {start_offset}: neither may be negative")
    if lineage and lineage[-1].leader_epoch == leader_epoch and lineage[-1].start_offset <= start_offset:
        return lineage
    kept = (entry for entry in lineage if entry.leader_epoch < leader_epoch and entry.start_offset < start_offset)
    return (*kept, EpochEntry(leader_epoch, start_offset, chain))


def end_offset_for(lineage: Lineage, log_end_offset: int, leader_epoch: int) -> tuple[int, int]:
    """The largest known epoch at or below `leader_epoch`, and the offset after its last record.

    The latest epoch ends at the LEO. An epoch below all known ones ends where the first known one starts. An epoch
    above all known ones, or a negative one, gives (-1, -1): unknown to this log.

    Kafka: `LeaderEpochFileCache.endOffsetFor`. KIP-279 added the epoch to the answer: a follower that does not know
    this epoch either must not truncate by the offset alone. [EP-03]
    """
    undefined = (UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET)
    if leader_epoch < 0 or not lineage or leader_epoch > lineage[-1].leader_epoch:
        return undefined
    if leader_epoch == lineage[-1].leader_epoch:
        return leader_epoch, log_end_offset
    following = bisect_right(lineage, leader_epoch, key=lambda entry: entry.leader_epoch)
    known = lineage[following - 1].leader_epoch if following else leader_epoch
    return known, lineage[following].start_offset


def truncate_from_start(lineage: Lineage, offset: int, chain: str = "") -> Lineage:
    """The lineage of a log that now starts at `offset`, where its chain is `chain`.

    The entry that contains `offset` now starts there: the first remaining record was written under its epoch.

    Kafka: `LeaderEpochFileCache.truncateFromStart`. [EP-04]
    """
    following = bisect_right(lineage, offset, key=lambda entry: entry.start_offset)
    if following == 0:
        return lineage
    return (EpochEntry(lineage[following - 1].leader_epoch, offset, chain), *lineage[following:])


def epoch_at(lineage: Lineage, offset: int) -> int | None:
    """The epoch of `offset`; None if the lineage starts after it.

    The last entry is open-ended: offsets at or above the LEO have the last epoch. [EP-01]
    """
    following = bisect_right(lineage, offset, key=lambda entry: entry.start_offset)
    return lineage[following - 1].leader_epoch if following else None


def covers(lineage: Lineage, leader_epoch: int, base_offset: int, last_offset: int) -> bool:
    """Whether every offset from `base_offset` to `last_offset`, both included, has `leader_epoch` in the lineage.

    A follower appends a batch only if the leader's lineage covers it. An old checkpoint may deliver a batch that the
    leader has truncated, and whose offsets now belong to another epoch. Epochs rise with offsets, so checking both ends
    is enough. [EP-01]
    """
    return base_offset <= last_offset and epoch_at(lineage, base_offset) == leader_epoch == epoch_at(
        lineage, last_offset
    )
