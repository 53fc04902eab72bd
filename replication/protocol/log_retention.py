"""Decides which records retention or a request deletes: where the log start moves to.

A log start only rises, and never above the HW, because uncommitted records must stay.

Kafka: `UnifiedLog.deleteOldSegments`, `maybeIncrementLogStartOffset`, `Partition.deleteRecordsOnLeader`. KIP-107.
"""

from __future__ import annotations

from lakelog.replication.errors import NotLeaderOrFollowerException, OffsetOutOfRangeException, PolicyViolationException
from lakelog.replication.protocol.partition_log import PartitionLog

KEEP_ALL = -1
HIGH_WATERMARK = -1


def retention_offset(
    log: PartitionLog, high_watermark: int, now_us: int, retention_ms: int, retention_bytes: int
) -> int:
    """The log start that retention asks for on a leader's log. Whole batches below the HW go, oldest first, while
    either limit allows it.

    A batch is too old if its newest record is older than `retention_ms`. Any younger batch before it protects it, since
    a log has no holes. By size, batches go while the rest has at least `retention_bytes` of keys and values. -1 is no
    limit. `now_us`: microseconds since the epoch, as record timestamps are. [DR-01]

    Kafka: `UnifiedLog.deleteRetentionMsBreachedSegments`, `deleteRetentionSizeBreachedSegments`.
    """
    committed = [b.header for b in log.batches if b.header.next_offset > log.log_start_offset]
    excess = sum(header.retained.bytes for header in committed) - retention_bytes
    start = log.log_start_offset
    for header in committed:
        is_too_old = retention_ms != KEEP_ALL and header.max_timestamp < now_us - retention_ms * 1000
        excess -= header.retained.bytes
        is_too_much = retention_bytes != KEEP_ALL and excess >= 0
        if header.next_offset > high_watermark or not (is_too_old or is_too_much):
            break
        start = header.next_offset
    return start


def delete_records_offset(
    log: PartitionLog, leader_epoch: int, high_watermark: int, before_offset: int, may_delete: bool, name: str
) -> int:
    """The log start after records below `before_offset` are deleted; -1 stands for the HW. The log start never falls.

    `may_delete`: whether the topic's `cleanup.policy` has `delete`.

    Kafka: `Partition.deleteRecordsOnLeader`. KIP-107. [DR-01]

    Raises:
        NotLeaderOrFollowerException: the log does not lead under this leader epoch.
        PolicyViolationException: the topic's `cleanup.policy` lacks `delete`.
        OffsetOutOfRangeException: the offset is no whole number, or negative but not -1, or above the HW.
    """
    if not log.role.leads_at(leader_epoch):
        raise NotLeaderOrFollowerException(f"{name}: the log does not lead under leader epoch {leader_epoch}")
    if not may_delete:
        raise PolicyViolationException(f"{name}: cleanup.policy lacks delete, so no records may be deleted")
    offset = high_watermark if before_offset == HIGH_WATERMARK else before_offset
    is_whole = isinstance(before_offset, int) and not isinstance(before_offset, bool)
    if not is_whole or not 0 <= offset <= high_watermark:
        raise OffsetOutOfRangeException(
            f"{name}: records before offset {before_offset!r:.80} cannot be deleted: "
            f"only 0 to {high_watermark}, the high watermark, or -1 for all below it"
        )
    return max(offset, log.log_start_offset)


def follower_log_start(log_start_offset: int, log_end_offset: int, leader_log_start_offset: int) -> int:
    """A follower's log start: the leader's, but at most the follower's LEO. It never falls. [DR-02]

    Kafka: `ReplicaFetcherThread.processPartitionData`, `UnifiedLog.maybeIncrementLogStartOffset`.
    """
    return max(log_start_offset, min(leader_log_start_offset, log_end_offset))


def low_watermark(log_starts: list[int]) -> int:
    """The lowest log start of the live replicas: below it, every live replica has deleted its records.

    Kafka: `Partition.lowWatermarkIfLeader`. KIP-107. [DR-02]
    """
    return min(log_starts)
