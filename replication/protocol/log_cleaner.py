"""Decides what the log cleaner may remove from a log of a topic with `cleanup.policy=compact`: records of which a later
one has the same key.

A record goes only if the log has a later one of its key below the high watermark. So the newest record of each key
stays, at its offset, and records keep their order. A *tombstone*, a record without a value, is the newest record of its
key, too. It goes `delete.retention.ms` after the cleaner has first been through its batch, and so through all older
records of its key. Batch headers stay, with the digest of all records that the batch had. So replicas that were cleaned
at different times still prove that they are equal.

Kafka: `LogCleanerManager`, `Cleaner`; KIP-58, KIP-354, KIP-534.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakelog.replication.protocol.partition_log import PartitionLog, PlacedBatch
from lakelog.replication.protocol.record_batch import NO_HORIZON, BatchHeader, OffsetRange

_MICROSECONDS = 1000  # in a millisecond
_LATEST = 2**63 - 1


@dataclass(frozen=True)
class CleanerConfig:
    """A topic's settings for the log cleaner. Lags and retention in ms."""

    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int


@dataclass(frozen=True)
class LogToClean:
    """The part of a log to clean: records before `dirty.start` are clean, and those in `dirty` give the keys.
    `ratio`: the share of `dirty` in the bytes of the log up to there.

    Kafka: `LogToClean`.
    """

    log_start: int
    dirty: OffsetRange
    ratio: float


def log_to_clean(log: PartitionLog, high_watermark: int, now_us: int, config: CleanerConfig) -> LogToClean | None:
    """The part of a log to clean now; None if that does not pay off yet. [LC-01]

    It pays off if more than `min.cleanable.dirty.ratio` of the bytes are dirty, or if a dirty batch is older than
    `max.compaction.lag.ms`. Batches above the HW, and all from the first one on that is younger than
    `min.compaction.lag.ms`, are not cleaned. `now_us`: microseconds since the epoch, as record timestamps are. A batch
    is as old as its newest record.

    Kafka: `LogCleanerManager.grabFilthiestCompactedLog`, `cleanableOffsets`, `maxCompactionDelay`.
    """
    start = log.log_start_offset
    first_dirty = log.cleaned_to if start <= log.cleaned_to <= log.log_end_offset else start
    dirty = _cleanable(log.batches_between(first_dirty, high_watermark), high_watermark, now_us, config)
    if not dirty:
        return None
    clean_bytes, dirty_bytes = (_bytes(batches) for batches in (log.batches_between(start, first_dirty), dirty))
    ratio = dirty_bytes / max(1, clean_bytes + dirty_bytes)
    oldest = min(batch.header.max_timestamp for batch in dirty)
    is_late = now_us - oldest > config.max_compaction_lag_ms * _MICROSECONDS
    if not is_late and ratio <= config.min_cleanable_dirty_ratio:
        return None
    return LogToClean(start, OffsetRange(first_dirty, dirty[-1].header.next_offset), ratio)


def _cleanable(
    batches: Iterable[PlacedBatch], high_watermark: int, now_us: int, config: CleanerConfig
) -> list[PlacedBatch]:
    """The whole batches before the first one that must wait."""
    found, youngest = [], now_us - config.min_compaction_lag_ms * _MICROSECONDS
    for batch in batches:
        is_young = config.min_compaction_lag_ms > 0 and batch.header.max_timestamp > youngest
        if batch.header.next_offset > high_watermark or is_young:
            break
        found.append(batch)
    return found


def _bytes(batches: Iterable[PlacedBatch]) -> int:
    return sum((batch.header.cleaned or batch.header).bytes for batch in batches)  # without a `Retained` for each


def may_lose_tombstones(header: BatchHeader, now_us: int) -> bool:
    """Whether the tombstones of a batch may go: their `delete.retention.ms` are over. [LC-01]

    Kafka: `Cleaner.shouldRetainRecord`, KIP-534.
    """
    return header.retained.delete_horizon != NO_HORIZON and now_us >= header.retained.delete_horizon


def delete_horizon(
    header: BatchHeader, has_tombstones: bool, dirty: OffsetRange, now_us: int, retention_ms: int
) -> int:
    """When the tombstones that are left in a batch may go: `delete.retention.ms` after the cleaner has first been
    through the batch. It has been through all older records of their keys then. [LC-01]

    Kafka: `MemoryRecords.filterTo`, KIP-534.
    """
    if not has_tombstones:
        return NO_HORIZON
    known = header.retained.delete_horizon
    if known != NO_HORIZON or header.next_offset <= dirty.start:
        return known
    return min(now_us + retention_ms * _MICROSECONDS, _LATEST)
