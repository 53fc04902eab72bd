"""The lineage of a replica: which leader epoch wrote from which offset on. [EP-01]

A lineage is a tuple of `EpochEntry`, oldest first, epochs and start offsets both strictly rising. Each entry holds up
to the start of the next; the last one is open-ended, since the log knows where it ends and the lineage does not.

Kafka: `LeaderEpochFileCache`. KIP-101, KIP-279, KIP-320.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class EpochEntry(NamedTuple):
    """A leader epoch, the offset of the first record that was, or will be, written under it, and the chain of the log
    up to there."""

    leader_epoch: int
    start_offset: int
    chain: str = ""


Lineage = tuple[EpochEntry, ...]


def assign(lineage: Lineage, leader_epoch: int, start_offset: int, chain: str = "") -> Lineage:
    """The lineage once `leader_epoch` begins at `start_offset`, where the log has this `chain`.

    A new entry replaces whatever it contradicts: entries of its epoch or later, and entries that start at or after it.
    So an epoch under which nothing was written leaves no trace, and both columns stay strictly rising. An epoch that
    is already the last one, at or after its start, changes nothing: every batch of a leader repeats its epoch.

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
    """The largest epoch at or below `leader_epoch` that the log knows, and the offset after its last record.

    Of the latest epoch the end is the LEO. An epoch below all that are known ends where the first known one starts.
    An epoch above all of them, or an undefined one, has the answer (-1, -1): this log cannot say.

    Kafka: `LeaderEpochFileCache.endOffsetFor`. KIP-279 added the epoch to the answer: a follower that does not know
    that epoch either must not truncate at the offset alone. [EP-03]
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
    """The lineage of a log that starts at `offset`, where its chain is `chain`: the entry that holds it now starts
    there.

    Kafka: `LeaderEpochFileCache.truncateFromStart`. The last of the entries that go is moved instead of dropped, since
    the first record that is kept was written under it. [EP-04]
    """
    following = bisect_right(lineage, offset, key=lambda entry: entry.start_offset)
    if following == 0:
        return lineage
    return (EpochEntry(lineage[following - 1].leader_epoch, offset, chain), *lineage[following:])


def epoch_at(lineage: Lineage, offset: int) -> int | None:
    """The epoch that `offset` belongs to, None where the lineage starts after it.

    The last entry is open-ended: at and above the LEO the answer is the epoch that would write there next. [EP-01]
    """
    following = bisect_right(lineage, offset, key=lambda entry: entry.start_offset)
    return lineage[following - 1].leader_epoch if following else None


def covers(lineage: Lineage, leader_epoch: int, base_offset: int, last_offset: int) -> bool:
    """Whether the lineage gives `leader_epoch` to all offsets from `base_offset` to `last_offset`, both included.

    A follower appends a header only if the leader's lineage covers it: an old checkpoint may deliver a batch that the
    leader has since truncated, and whose offsets now belong to another epoch. Epochs rise with offsets, so that the
    two ends speak for all that lies between them. [EP-01]
    """
    return base_offset <= last_offset and epoch_at(lineage, base_offset) == leader_epoch == epoch_at(
        lineage, last_offset
    )
