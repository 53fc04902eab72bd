"""Truncates logs in one commit, which removes batches and adds no new ones. [TR-05]

A batch stays whole or goes, because a part of one has no chain.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from lakelog.replication.errors import CorruptRecordException, FencedLeaderEpochException
from lakelog.replication.protocol.partition_log import STOPPED, Role, role_version
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.truncation import Truncation, check_truncation
from lakelog.replication.storage.log.log_rewrite import Kept, Producers, Removal, snapshots_of, take_out
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.log_txns import role_app_id, start_txns
from lakelog.replication.storage.log.producer_snapshot import newest
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment

logger = logging.getLogger(__name__)

DELETION = "stop replica with deletion"  # the reason of a commit that deletes replicas


def truncate_logs(log: ReplicaLog, truncations: Mapping[TopicIdPartition, Truncation], who: str) -> int | None:
    """Truncates a follower's logs in one commit. Skips a partition whose role has changed, or whose records may lie in
    a broken segment."""

    def plan(state: LogState) -> Removal | None:
        allowed = {p: truncation for p, truncation in truncations.items() if _is_allowed(state, p, truncation)}
        restarts = {p: truncation.restart for p, truncation in allowed.items() if truncation.restart is not None}
        # A log that starts over loses also what lies below its start, and what it remembers of producers.
        kept = without_ends(state, {p: 0 if p in restarts else truncation.offset for p, truncation in allowed.items()})
        txns = {app_id: value for p, start in restarts.items() for app_id, value in start_txns(p, start).items()}
        return Removal(kept, without_producers(state, restarts), txns) if kept or txns else None

    return take_out(log, {"who": who, "why": "truncate to the leader's lineage"}, plan)


def _is_allowed(state: LogState, partition: TopicIdPartition, truncation: Truncation) -> bool:
    try:
        check_truncation(state.partition(partition), truncation, str(partition))
    except (FencedLeaderEpochException, CorruptRecordException) as error:
        logger.warning("%s", error)
        return False
    return True


def delete_logs(
    log: ReplicaLog, partitions: Iterable[TopicIdPartition], who: str, hosted: Collection[TopicIdPartition] = ()
) -> int | None:
    """Removes all records of partitions whose replica was stopped here, in one commit. [SR-02]

    A broken segment goes if it holds no other partition of `hosted`, which has all partitions of the broker: the rest
    of an unreadable segment cannot be written again. [SR-03] Raises KafkaStorageException.
    """

    def plan(state: LogState) -> Removal | None:
        stopped = [p for p in partitions if state.known(p).role.kind == STOPPED]
        for_nobody: dict[str, Kept] = {segment.name: () for segment in state.broken_for_nobody(hosted)}
        removal = Removal(
            {**without_ends(state, dict.fromkeys(stopped, 0)), **for_nobody}, without_producers(state, stopped)
        )
        return removal if removal.kept or removal.producers is not None else None

    return take_out(log, {"who": who, "why": DELETION}, plan)


def delete_stray_logs(log: ReplicaLog, partitions: Iterable[TopicIdPartition], who: str) -> list[TopicIdPartition]:
    """Removes all records of stray replicas, in one commit; returns the partitions of which it did. A replica that the
    metadata have explained meanwhile stays as it is. [SR-03]

    Other processes than the log's broker may call it, too: it first commits that they are stopped, which only a later
    leader epoch undoes. Raises KafkaStorageException.
    """
    stopped: list[TopicIdPartition] = []

    def decide(state: LogState) -> LogChange | None:
        roles = {p: state.known(p).role for p in partitions}
        stopped[:] = [p for p, role in roles.items() if role.is_stray]
        txns = {role_app_id(p): role_version(Role(roles[p].leader_epoch, STOPPED)) for p in stopped}
        return LogChange(txns=txns) if txns else None

    log.transact({"who": who, "why": "stop stray replicas"}, decide)
    if stopped:
        delete_logs(log, stopped, who)
    return list(stopped)


def without_ends(state: LogState, offsets: Mapping[TopicIdPartition, int]) -> dict[str, Kept]:
    """The segments with batches that reach above each partition's offset, and the batches that remain of each.

    A log that ends at or below its offset does not change. Broken segments stay.
    """
    touched = {
        batch.segment
        for partition, offset in offsets.items()
        for batch in state.known(partition).batches
        if batch.header.next_offset > offset and batch.segment not in state.broken
    }
    return {name: _below(state.segments[name], offsets) for name in sorted(touched)}


def _below(segment: Segment, offsets: Mapping[TopicIdPartition, int]) -> Kept:
    """The batches of a segment that end at or below the offsets."""
    return tuple(h for h in segment.headers if h.next_offset <= offsets.get(h.topic_id_partition, h.next_offset))


def without_producers(state: LogState, partitions: Collection[TopicIdPartition]) -> Producers | None:
    """The producer state without that of some partitions; None if they have none."""
    remembered = newest(p for segment in snapshots_of(state) for p in segment.producers)
    kept = tuple(p for p in remembered if p.topic_id_partition not in partitions)
    return kept if len(kept) < len(remembered) else None
