"""Deletes records from the beginning of logs: raises log starts, and removes the segments below them.

Kafka: `UnifiedLog.deleteOldSegments`, `LogManager.cleanupLogs`. [DR-01]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.partition_log import STOPPED, PartitionLog
from lakelog.replication.protocol.producer_state import ProducerEntry, forget
from lakelog.replication.protocol.record_batch import NO_PRODUCER_ID, BatchHeader, TopicIdPartition
from lakelog.replication.storage.log.log_rewrite import Kept, Producers, Removal, readable, snapshots_of, take_out
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.log_txns import log_start_app_id
from lakelog.replication.storage.log.producer_snapshot import RememberedProducer, newest
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment

# Returns a partition's new log start for its current log.
StartOf = Callable[[PartitionLog], int]


def raise_log_starts(
    log: ReplicaLog, starts: Mapping[TopicIdPartition, StartOf], who: str, why: str, deadline: float | None = None
) -> dict[TopicIdPartition, int | LakelogException]:
    """Raises log starts in one commit that removes no file; the log's broker removes files later.

    Returns each partition's log start, or the error that its `StartOf` raised. Raises TimeoutException at the
    `deadline` (seconds of the monotonic clock), and KafkaStorageException.
    """
    outcomes: dict[TopicIdPartition, int | LakelogException] = {}

    def decide(state: LogState) -> LogChange | None:
        txns = {}
        for partition, start_of in starts.items():
            try:
                known = state.partition(partition)
                start = max(start_of(known), known.log_start_offset)
            except LakelogException as error:
                outcomes[partition] = error
                continue
            outcomes[partition] = start
            if start > known.log_start_offset:
                txns[log_start_app_id(partition)] = start
        return LogChange(txns=txns) if txns else None

    log.transact({"who": who, "why": why, "partitions": len(starts)}, decide, deadline)
    return outcomes


def follow_log_starts(log: ReplicaLog, starts: Mapping[TopicIdPartition, tuple[int, int]], who: str) -> None:
    """Raises log starts to those of the leaders. `starts` has the followed leader epoch and the offset. [DR-02]"""

    def follow(leader_epoch: int, offset: int) -> StartOf:
        def start_of(known: PartitionLog) -> int:
            return offset if known.role.follows_at(leader_epoch) else known.log_start_offset

        return start_of

    raise_log_starts(log, {p: follow(*start) for p, start in starts.items()}, who, "log start of the leader")


def delete_old_segments(log: ReplicaLog, forget_before_us: int, who: str) -> int | None:
    """Removes the segments that no longer hold readable records, in one commit. Returns its version, None without any.

    It rewrites a segment once less than half of its records remain. Batches of a partition are removed in order, so it
    also rewrites the segments with that partition's earlier batches. It keeps the state of producers that sent a record
    since `forget_before_us` (µs since the epoch). Raises KafkaStorageException.
    """

    def plan(state: LogState) -> Removal | None:
        dead = _dead_segments(state) if any(_begins_dead(state.known(p)) for p in state.partitions()) else {}
        if not dead:
            return None
        kept = {name: _alive(state, segment) for name, segment in dead.items()}
        return Removal(kept, _producers(state, kept, forget_before_us))

    return take_out(log, {"who": who, "why": "delete old segments"}, plan)


def _begins_dead(log: PartitionLog) -> bool:
    return bool(log.batches) and log.batches[0].header.next_offset <= log.log_start_offset


def _dead_segments(state: LogState) -> dict[str, Segment]:
    holding = {name: s for name, s in readable(state).items() if any(_is_dead(state, h) for h in s.headers)}
    found = {name: segment for name, segment in holding.items() if _is_mostly_dead(state, segment)}
    while True:
        last: dict[TopicIdPartition, int] = {}
        for header in (h for segment in found.values() for h in segment.headers if _is_dead(state, h)):
            last[header.topic_id_partition] = max(last.get(header.topic_id_partition, 0), header.base_offset)
        before = {n: s for n, s in holding.items() if n not in found and _holds_earlier(state, s, last)}
        if not before:
            return found
        found.update(before)


def _is_dead(state: LogState, header: BatchHeader) -> bool:
    return header.next_offset <= state.known(header.topic_id_partition).log_start_offset


def _is_mostly_dead(state: LogState, segment: Segment) -> bool:
    alive = sum(header.records for header in segment.headers if not _is_dead(state, header))
    return alive * 2 < sum(header.records for header in segment.headers)


def _holds_earlier(state: LogState, segment: Segment, last: Mapping[TopicIdPartition, int]) -> bool:
    return any(_is_dead(state, h) and h.base_offset < last.get(h.topic_id_partition, 0) for h in segment.headers)


def _alive(state: LogState, segment: Segment) -> Kept:
    """The batches of a segment that are not wholly below the log start."""
    return tuple(header for header in segment.headers if not _is_dead(state, header))


def _producers(state: LogState, kept: Mapping[str, Kept], forget_before_us: int) -> Producers:
    """The producer state to keep: the current state and that of the batches that go now, for partitions that are still
    here."""
    entries: dict[tuple[TopicIdPartition, int], tuple[ProducerEntry | None, int]] = {
        (p.topic_id_partition, p.producer_id): (p.entry, p.max_timestamp)
        for p in newest(p for s in snapshots_of(state) for p in s.producers)
    }
    for header in _going(state, kept):
        key = header.topic_id_partition, header.producer_id
        entry, latest = entries.get(key, (None, 0))
        entries[key] = forget(entry, header), max(latest, header.max_timestamp)
    return tuple(
        RememberedProducer(partition, producer, entry, latest)
        for (partition, producer), (entry, latest) in entries.items()
        if entry is not None and latest >= forget_before_us and state.known(partition).role.kind != STOPPED
    )


def _going(state: LogState, kept: Mapping[str, Kept]) -> list[BatchHeader]:
    """The batches with a producer id that leave the log, in order of offsets."""
    left = {(h.topic_id_partition, h.base_offset) for headers in kept.values() for h in headers}
    headers = (h for name in kept for h in state.segments[name].headers if h.producer_id != NO_PRODUCER_ID)
    going = (h for h in headers if (h.topic_id_partition, h.base_offset) not in left)
    return sorted(going, key=lambda header: (header.topic_id_partition, header.base_offset))
