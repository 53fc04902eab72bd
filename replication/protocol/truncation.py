"""Where a follower truncates its log before it follows a new leader.

Kafka asks the leader for the end of one epoch after the other; here both lineages are rows, so that the end of their
common part is found in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lakelog.replication.errors import FencedLeaderEpochException
from lakelog.replication.protocol.leader_epoch import EpochEntry, epoch_at
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import LogEnd
from lakelog.replication.protocol.replica import Replica

Lineage = tuple[EpochEntry, ...]


class Truncation(NamedTuple):
    """A log loses the batches that reach above `offset`, while its replica follows at `leader_epoch`.

    `restart`: where a log of which nothing is left begins, and the chain of what lies before that; None if something is
    left, or it begins where it did.
    """

    leader_epoch: int
    offset: int
    restart: LogEnd | None = None


def truncation_for(own: PartitionLog, leader: Replica, leader_batches: Sequence[LogEnd] | None = None) -> Truncation:
    """What a follower has to truncate under a new leader, whose row has its lineage, or whose batches it does not have.

    A log that ends before the leader's begins can never be joined to it, and one of which nothing is left says nothing
    of what lies below its start in the leader's history, where other records may have come: both start over, where the
    leader's log does. Kafka starts the latter at the leader's end, so that it lacks what is in between.

    `leader_batches`: where the leader's batches end, with their chains, oldest first. They are asked for when the two
    histories differ although their epochs do not.

    Kafka: `AbstractFetcherThread.truncateToEpochEndOffsets`, `fetchOffsetAndTruncate`, `UnifiedLog.truncateTo`. [TR-01,
    TR-03, TR-06, TR-07]
    """
    start = LogEnd(leader.log_start_offset, leader.log_start_chain)
    if own.log_end_offset < leader.log_start_offset:
        return Truncation(leader.leader_epoch, own.log_start_offset, start)
    offset = truncation_offset(own.lineage, own.log_end_offset, leader.epochs)
    if leader_batches is not None:
        offset = min(offset, common_end(own, [start, *leader_batches]))
    offset = own.boundary_at(offset)
    if offset > own.log_start_offset:
        return Truncation(leader.leader_epoch, offset)
    is_as_the_leaders = LogEnd(own.log_start_offset, own.chain_at(own.log_start_offset) or "") == start
    return Truncation(leader.leader_epoch, own.log_start_offset, None if is_as_the_leaders else start)


def has_other_history(own: PartitionLog, leader: Replica) -> bool:
    """Whether a follower's log and its leader's differ although their epochs do not say so, as far as rows can tell.

    The chains are compared where the leader's row has one: at the starts of its epochs, and at its end if the follower
    has come so far. Where it has not, the first batch that it fetches tells.

    Raft: the log matching property. [TR-08]
    """
    agreed = truncation_offset(own.lineage, own.log_end_offset, leader.epochs)
    told = [LogEnd(entry.start_offset, entry.chain) for entry in leader.epochs]
    told.append(LogEnd(leader.log_end_offset, leader.chain))
    known = ((end, own.chain_at(end.offset)) for end in told if end.offset <= agreed)
    return any(chain is not None and chain != end.chain for end, chain in known)


def leader_lost_its_end(own: PartitionLog, leader: Replica, leader_batches: Sequence[LogEnd]) -> bool:
    """Whether a follower has records of the leader's own epoch that the leader's log does not have any more.

    A leader truncates nothing within its epoch, and what a follower has of that epoch came from the leader: so the
    leader's log has lost its end, and what was lost may have been committed. Such a leader is not followed. Its next
    process leads under another leader epoch or not at all, and then the records are of an older epoch. [TR-08]
    """
    end = common_end(own, [LogEnd(leader.log_start_offset, leader.log_start_chain), *leader_batches])
    agreed = truncation_offset(own.lineage, own.log_end_offset, leader.epochs)
    return bool(leader.epochs) and leader.epochs[-1].start_offset <= end < agreed


def are_of_the_log(batches: Sequence[LogEnd], before: Replica, now: Replica, first: int) -> bool:
    """Whether batches that were read from a leader's log are those of the log that its rows tell of.

    `batches`: the ends of those that end above `first`, in order. `before` and `now`: what the row said before they
    were read, and says now. A log that has been emptied, or has lost its end, has not the end that its row told of; one
    that is another by now has another end, unless the leader has only gone on. [TR-08]
    """
    last = batches[-1].offset if batches else first
    return _has_end(batches, before, first) and (now.log_end_offset > last or _has_end(batches, now, first))


def _has_end(batches: Sequence[LogEnd], row: Replica, first: int) -> bool:
    end = LogEnd(row.log_end_offset, row.chain)
    is_empty = end == LogEnd(row.log_start_offset, row.log_start_chain)
    return end in batches or is_empty or (not batches and end.offset <= first)


def common_end(own: PartitionLog, leader: Sequence[LogEnd]) -> int:
    """The largest offset up to which two logs have the same batches; the own log start where they have none.

    `leader` has the ends of the leader's batches, in order. [TR-08]
    """
    same = (end.offset for end in reversed(leader) if own.chain_at(end.offset) == end.chain)
    return next(same, own.log_start_offset)


def check_truncation(log: PartitionLog, truncation: Truncation, name: str) -> None:
    """A truncation is made in the role that it was decided in, or not at all: a later leader's records are not to be
    lost.

    Kafka: `AbstractFetcherThread.truncateToEpochEndOffsets`, which drops answers of another leader epoch. [TR-02]

    Raises:
        FencedLeaderEpochException: the log has another role by now.
    """
    if not log.role.follows_at(truncation.leader_epoch):
        raise FencedLeaderEpochException(
            f"{name}: not truncated to {truncation.offset}: it no longer follows at leader epoch "
            f"{truncation.leader_epoch} ({log.role})"
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
