"""Where a follower cuts its log before it follows a new leader.

Kafka asks the leader for the end of one epoch after the other; here both lineages are rows, so that the end of their
common part is found in one step.
"""

from __future__ import annotations

from collections.abc import Iterable

from replication.protocol.leader_epoch import EpochEntry, epoch_at

Lineage = tuple[EpochEntry, ...]


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
