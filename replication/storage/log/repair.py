"""Repairs broken replicas: removes broken batches and everything after them, to fetch them again from the leader.

Only a follower that is in no ISR may do this, because the last complete copy of a record must never go. A broker finds
missing and rotten files by itself. An operator who finds other wrong records notes their offset in the log. [OL-01]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.partition_log import NO_REPAIR
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.log.log_rewrite import Kept, Removal, take_out
from lakelog.replication.storage.log.log_state import LogChange, LogState
from lakelog.replication.storage.log.log_txns import repair_txn, start_txns
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import without_ends, without_producers


def repair_logs(
    log: ReplicaLog, follows: Mapping[TopicIdPartition, int], who: str, hosted: Collection[TopicIdPartition] = ()
) -> int | None:
    """Removes broken segments whose records may all be fetched again, and truncates each partition at its first broken
    batch, in one commit. Returns its version, None if there is nothing to do.

    `follows` has the partitions that may be fetched again, with their leader epochs; a replica with another role by now
    keeps its records. `hosted` has all partitions of the broker. Raises KafkaStorageException.
    """

    def plan(state: LogState) -> Removal | None:
        mine = {p for p, epoch in follows.items() if state.known(p).role.follows_at(epoch)}
        holders = {name: state.holders(broken, hosted) for name, broken in state.broken.items()}
        files = [name for name, held in holders.items() if held and held <= mine]
        noted = mine & state.to_repair
        offsets = {p: _first_broken(state, p, files) for p in mine if p in noted or state.fault(p) is not None}
        kept: dict[str, Kept] = {**without_ends(state, offsets), **dict.fromkeys(files, ())}
        started_over = [p for p, offset in offsets.items() if offset == 0]
        # From offset 0: the start of its log cannot be trusted either.
        txns = {app_id: value for p in started_over for app_id, value in start_txns(p, LogEnd(0, genesis(p))).items()}
        txns |= {app_id: value for p in noted for app_id, value in repair_txn(p).items()}
        return Removal(kept, without_producers(state, started_over), txns) if kept or noted else None

    return take_out(log, {"who": who, "why": "repair", "partitions": len(follows)}, plan) if follows else None


def _first_broken(state: LogState, partition: TopicIdPartition, files: Iterable[str]) -> int:
    """The offset at which to truncate the partition. It is 0 if nothing would remain above the log start, or if the
    lost content is unknown."""
    log, topic = state.known(partition), state.topics.get(partition.topic_id)
    held = [name for name in files if state.broken[name].may_hold(partition, topic)]
    is_without_beginning = partition in state.unsound and log.sound_end == log.log_end_offset
    if is_without_beginning or any(state.broken[name].partitions is None for name in held):
        return 0
    first = min([log.sound_end, *(batch.base_offset for batch in log.batches if batch.segment in held)])
    if log.repair_from != NO_REPAIR:
        first = min(first, log.boundary_at(log.repair_from))
    return first if first > log.log_start_offset else 0


def note_repairs(
    log: ReplicaLog, wrong: Mapping[TopicIdPartition, tuple[int, int]], who: str
) -> Collection[TopicIdPartition]:
    """Notes in a log which partitions have wrong records, from which offset on, in one commit. `wrong`: the leader
    epoch under which the replica follows, and the offset. Returns the partitions of which the log has a note now; a
    replica with another role by then gets none.

    Processes other than the log's broker may call it. The note changes no record. While another broker leads, the
    log's broker takes the replica offline, leaves the ISR, truncates the log there, and fetches the records again. A
    role other than follower deletes the note. Raises KafkaStorageException.
    """
    noted: list[TopicIdPartition] = []

    def decide(state: LogState) -> LogChange | None:
        noted[:] = [p for p, (epoch, _) in wrong.items() if state.known(p).role.follows_at(epoch)]
        txns: dict[str, int] = {}
        for partition in noted:
            offset, known = wrong[partition][1], state.known(partition).repair_from
            if known == NO_REPAIR or offset < known:
                txns.update(repair_txn(partition, offset))
        return LogChange(txns=txns) if txns else None

    log.transact({"who": who, "why": "note wrong records", "partitions": len(wrong)}, decide)
    return noted
