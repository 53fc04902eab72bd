"""Removes the ends of logs: truncates and deletes replicas, and repairs broken ones. [TR-05]

Each is one commit that removes batches and adds none. A batch stays whole or goes, because a part of one has no chain.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from lakelog.replication.errors import CorruptRecordException, FencedLeaderEpochException
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.partition_log import STOPPED, Role, role_version
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
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
        return Removal(kept, _without_producers(state, restarts), txns) if kept or txns else None

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
            {**without_ends(state, dict.fromkeys(stopped, 0)), **for_nobody}, _without_producers(state, stopped)
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


def repair_logs(
    log: ReplicaLog, follows: Mapping[TopicIdPartition, int], who: str, hosted: Collection[TopicIdPartition] = ()
) -> int | None:
    """Removes the broken segments whose records may all be fetched again, and truncates each partition at its first
    broken batch, in one commit. Returns its version, None if there is nothing to do.

    `follows`: the partitions that may be fetched again, with their leader epochs. Give only those of which this broker
    follows outside the ISR, because the last complete copy of a record must never go. A replica that has another role
    by now keeps its records. `hosted`: all partitions of the broker. Raises KafkaStorageException. [OL-01]
    """

    def plan(state: LogState) -> Removal | None:
        mine = {p for p, epoch in follows.items() if state.known(p).role.follows_at(epoch)}
        holders = {name: state.holders(broken, hosted) for name, broken in state.broken.items()}
        files = [name for name, held in holders.items() if held and held <= mine]
        offsets = {p: _first_broken(state, p, files) for p in mine if state.fault(p) is not None}
        kept: dict[str, Kept] = {**without_ends(state, offsets), **dict.fromkeys(files, ())}
        started_over = [p for p, offset in offsets.items() if offset == 0]
        # A log that starts over does so at offset 0: the start that it had cannot be trusted either.
        txns = {app_id: value for p in started_over for app_id, value in start_txns(p, LogEnd(0, genesis(p))).items()}
        return Removal(kept, _without_producers(state, started_over), txns) if kept else None

    return take_out(log, {"who": who, "why": "repair", "partitions": len(follows)}, plan) if follows else None


def _first_broken(state: LogState, partition: TopicIdPartition, files: Iterable[str]) -> int:
    """The offset at which to truncate the partition: that of its first broken batch. It is 0 if nothing would remain
    above the log start, or if nobody knows which batches were lost."""
    log, topic = state.known(partition), state.topics.get(partition.topic_id)
    held = [name for name in files if state.broken[name].may_hold(partition, topic)]
    is_without_beginning = partition in state.unsound and log.sound_end == log.log_end_offset
    if is_without_beginning or any(state.broken[name].partitions is None for name in held):
        return 0
    first = min([log.sound_end, *(batch.base_offset for batch in log.batches if batch.segment in held)])
    return first if first > log.log_start_offset else 0


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


def _without_producers(state: LogState, partitions: Collection[TopicIdPartition]) -> Producers | None:
    """The producer state without that of some partitions; None if they have none."""
    remembered = newest(p for segment in snapshots_of(state) for p in segment.producers)
    kept = tuple(p for p in remembered if p.topic_id_partition not in partitions)
    return kept if len(kept) < len(remembered) else None
