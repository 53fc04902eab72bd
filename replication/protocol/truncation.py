"""Where a follower cuts its log before it follows a new leader.

Kafka asks the leader for the end of one epoch after the other; here both lineages are rows, so that the end of their
common part is found in one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from replication.errors import FencedLeaderEpochException
from replication.protocol.leader_epoch import EpochEntry, epoch_at
from replication.protocol.partition_log import FOLLOWER, PartitionLog, Role
from replication.protocol.replica import Replica

Lineage = tuple[EpochEntry, ...]


class Cut(NamedTuple):
    """A log loses what lies at and above `offset`, while its replica follows at `leader_epoch`.

    `restart_at`: where a log of which nothing is left begins; None if something is left, or it begins where it did.
    """

    leader_epoch: int
    offset: int
    restart_at: int | None = None


def cut_for(own: PartitionLog, leader: Replica) -> Cut:
    """What a follower has to cut under a new leader, whose row has its lineage.

    A log that ends before the leader's begins can never be joined to it, and one of which nothing is left says nothing
    of what lies below its start in the leader's history, where other records may have come: both start over, where the
    leader's log does. Kafka starts the latter at the leader's end, so that it lacks what is in between.

    Kafka: `AbstractFetcherThread.truncateToEpochEndOffsets`, `fetchOffsetAndTruncate`, `UnifiedLog.truncateTo`. [TR-01,
    TR-03, TR-06, TR-07]
    """
    if own.log_end_offset < leader.log_start_offset:
        return Cut(leader.leader_epoch, own.log_start_offset, leader.log_start_offset)
    offset = truncation_offset(own.lineage, own.log_end_offset, leader.epochs)
    if offset > own.log_start_offset:
        return Cut(leader.leader_epoch, offset)
    is_as_the_leaders = own.log_start_offset == leader.log_start_offset
    return Cut(leader.leader_epoch, offset, None if is_as_the_leaders else leader.log_start_offset)


def check_cut(log: PartitionLog, cut: Cut, name: str) -> None:
    """A cut is made in the role that it was decided in, or not at all: a later leader's records are not to be lost.

    Kafka: `AbstractFetcherThread.truncateToEpochEndOffsets`, which drops answers of another leader epoch. [TR-02]

    Raises:
        FencedLeaderEpochException: the log has another role by now.
    """
    if log.role != Role(cut.leader_epoch, FOLLOWER):
        raise FencedLeaderEpochException(
            f"{name}: not cut to {cut.offset}: it no longer follows at leader epoch {cut.leader_epoch} ({log.role})"
        )


def truncation_offset(follower: Lineage, log_end_offset: int, leader: Lineage) -> int:
    """The first offset to which the two lineages give different epochs; the follower's LEO if there is none.

    Only offsets that the follower has can differ, and lineages change at starts of epochs alone: so these are all the
    places to look at. An epoch without records starts where the next one does and is never the epoch of an offset.

    Kafka: `AbstractFetcherThread.getOffsetTruncationState`, `LeaderEpochFileCache.endOffsetFor`. KIP-101, KIP-279.
    [TR-01, TR-03, TR-04]
    """
    for offset in _starts(follower, leader, log_end_offset):
        if epoch_at(follower, offset) != epoch_at(leader, offset):
            return offset
    return log_end_offset


def _starts(follower: Lineage, leader: Lineage, log_end_offset: int) -> Iterable[int]:
    """Where an epoch starts in either lineage, within what both can speak of: retention may have taken the beginning
    of one log and not of the other, which is no divergence."""
    if not follower or not leader:
        return ()
    first = max(follower[0].start_offset, leader[0].start_offset)
    starts = {first, *(entry.start_offset for entry in (*follower, *leader))}
    return sorted(start for start in starts if first <= start < log_end_offset)
