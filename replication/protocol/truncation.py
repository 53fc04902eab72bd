"""Decides where a follower truncates its log before it follows a new leader.

Kafka asks the leader for the end of one epoch after another. Here both lineages are in rows, so one comparison finds
where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lakelog.replication.errors import CorruptRecordException, FencedLeaderEpochException
from lakelog.replication.protocol.leader_epoch import EpochEntry, epoch_at
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import LogEnd
from lakelog.replication.protocol.replica_status import ReplicaStatus

Lineage = tuple[EpochEntry, ...]


class Truncation(NamedTuple):
    """Removes the batches that end above `offset`, if the replica still follows at `leader_epoch`.

    `restart`: if the log becomes empty, its new log start and the chain before it; None if batches remain or the start
    stays.
    """

    leader_epoch: int
    offset: int
    restart: LogEnd | None = None


def truncation_for(
    own: PartitionLog, leader: ReplicaStatus, leader_batches: Sequence[LogEnd] | None = None
) -> Truncation:
    """The truncation of a follower's log under a leader with this row.

    Two kinds of log start over at the leader's log start. A log that ends below that start can never be joined to the
    leader's. A log that becomes empty does not show earlier records, which the leader's history may contain. Kafka
    starts the latter at the leader's log end, and so lacks the records in between.

    Nothing stays of a log that would lose records which the log cleaner has been through: it may lack older records of
    their keys, which the leader has. In Kafka they are lost. [LC-01]

    `leader_batches`: the ends of the leader's batches, oldest first, with their chains. They are needed if the
    histories differ although their epochs agree.

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
    # Below, records may have gone for later ones that go now. An unclean election has made them the newest again.
    has_all = min(own.cleaned_to, own.log_end_offset) <= offset
    if offset > own.log_start_offset and has_all:
        return Truncation(leader.leader_epoch, offset)
    is_as_the_leaders = LogEnd(own.log_start_offset, own.chain_at(own.log_start_offset) or "") == start
    return Truncation(leader.leader_epoch, own.log_start_offset, None if is_as_the_leaders else start)


def has_other_history(own: PartitionLog, leader: ReplicaStatus) -> bool:
    """Whether the rows show that a follower's log and its leader's differ although their epochs agree.

    The leader's row has chains at the starts of its epochs and at its LEO. They are compared as far as the follower's
    log goes. Beyond that, the first fetched batch shows a difference.

    Raft: the log matching property. [TR-08]
    """
    chains = [(entry.start_offset, entry.chain) for entry in leader.epochs]
    chains.append((leader.log_end_offset, leader.chain))
    other = [offset for offset, chain in chains if own.chain_at(offset) not in (chain, None)]
    return bool(other) and min(other) <= truncation_offset(own.lineage, own.log_end_offset, leader.epochs)


def leader_lost_its_end(own: PartitionLog, leader: ReplicaStatus, leader_batches: Sequence[LogEnd]) -> bool:
    """Whether a follower has records of the leader's own epoch that the leader's log no longer has.

    A leader truncates nothing within its epoch, and the follower's records of that epoch came from the leader. So the
    leader's log has lost its end, perhaps with committed records, and the follower does not truncate. The leader's next
    process leads under another epoch, or not at all; then the records belong to an older epoch. [TR-08]
    """
    end = common_end(own, [LogEnd(leader.log_start_offset, leader.log_start_chain), *leader_batches])
    agreed = truncation_offset(own.lineage, own.log_end_offset, leader.epochs)
    return bool(leader.epochs) and leader.epochs[-1].start_offset <= end < agreed


def are_of_the_log(batches: Sequence[LogEnd], before: ReplicaStatus, now: ReplicaStatus, first: int) -> bool:
    """Whether batches that were read from a leader's log belong to the log that the leader's rows describe.

    `batches`: the ends above `first`, in order. `before` and `now`: the row before and after the read. A log that was
    emptied or has lost its end lacks the end in `before`. A log that was replaced lacks the end in `now`, unless the
    leader has only appended more. [TR-08]
    """
    last = batches[-1].offset if batches else first
    return _has_end(batches, before, first) and (now.log_end_offset > last or _has_end(batches, now, first))


def _has_end(batches: Sequence[LogEnd], row: ReplicaStatus, first: int) -> bool:
    end = LogEnd(row.log_end_offset, row.chain)
    is_empty = end == LogEnd(row.log_start_offset, row.log_start_chain)
    return end in batches or is_empty or (not batches and end.offset <= first)


def common_end(own: PartitionLog, leader: Sequence[LogEnd]) -> int:
    """The largest offset at which both logs have the same chain; the follower's log start if there is none.

    `leader`: the ends of the leader's batches, in order. [TR-08]
    """
    same = (end.offset for end in reversed(leader) if own.chain_at(end.offset) == end.chain)
    return next(same, own.log_start_offset)


def check_truncation(log: PartitionLog, truncation: Truncation, name: str) -> None:
    """A truncation happens only in the role in which it was decided; it could remove a later leader's records
    otherwise.

    Kafka: `AbstractFetcherThread.truncateToEpochEndOffsets`, which drops answers of another leader epoch. [TR-02]

    Raises:
        FencedLeaderEpochException: the replica has another role or leader epoch by now.
        CorruptRecordException: the offset is negative, which a broken row of the leader may have led to.
    """
    if truncation.offset < 0:
        raise CorruptRecordException(f"{name}: not truncated to {truncation.offset}: no log has that offset")
    if not log.role.follows_at(truncation.leader_epoch):
        raise FencedLeaderEpochException(
            f"{name}: not truncated to {truncation.offset}: it no longer follows at leader epoch "
            f"{truncation.leader_epoch} ({log.role})"
        )


def truncation_offset(follower: Lineage, log_end_offset: int, leader: Lineage) -> int:
    """The first offset to which the two lineages give different epochs; the follower's LEO if there is none.

    A lineage changes only where an epoch starts, so only the starts below the LEO are compared. No offset belongs to an
    epoch without records, because it starts where the next one does.

    Kafka: `AbstractFetcherThread.getOffsetTruncationState`, `LeaderEpochFileCache.endOffsetFor`. KIP-101, KIP-279.
    [TR-01, TR-03, TR-04]
    """
    for offset in _starts(follower, leader, log_end_offset):
        if epoch_at(follower, offset) != epoch_at(leader, offset):
            return offset
    return log_end_offset


def _starts(follower: Lineage, leader: Lineage, log_end_offset: int) -> Iterable[int]:
    """The epoch starts of both lineages, from the later log start up to the follower's LEO.

    Retention may have removed the beginning of only one log, which is no divergence.
    """
    if not follower or not leader:
        return ()
    first = max(follower[0].start_offset, leader[0].start_offset)
    starts = {first, *(entry.start_offset for entry in (*follower, *leader))}
    return sorted(start for start in starts if first <= start < log_end_offset)
