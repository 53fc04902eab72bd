"""Repairs broken replicas: removes broken batches and everything after them, to fetch them again from the leader.

Only a follower that is in no ISR may do this, because the last complete copy of a record must never go. [OL-01]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.log.log_rewrite import Kept, Removal, take_out
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.log_txns import start_txns
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
        offsets = {p: _first_broken(state, p, files) for p in mine if state.fault(p) is not None}
        kept: dict[str, Kept] = {**without_ends(state, offsets), **dict.fromkeys(files, ())}
        started_over = [p for p, offset in offsets.items() if offset == 0]
        # From offset 0: the start of its log cannot be trusted either.
        txns = {app_id: value for p in started_over for app_id, value in start_txns(p, LogEnd(0, genesis(p))).items()}
        return Removal(kept, without_producers(state, started_over), txns) if kept else None

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
    return first if first > log.log_start_offset else 0
