"""Chooses the fetched batches that a follower appends: those that continue its own chain, each once.

Kafka: `ReplicaFetcherThread.processPartitionData` appends only at its own log end offset. Raft also compares the entry
before the first new one; the chain does that here. [FT-10]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd, TopicIdPartition


class FetchedBatch(NamedTuple):
    """A batch that a follower may append. `last_offset` is inclusive.

    `segment`, `segment_bytes`: the file that holds the batch, and its size in bytes. `bytes`: the size of the batch's
    keys and values. `previous` and `chain`: the chains before and after the batch.
    """

    topic_id_partition: TopicIdPartition
    base_offset: int
    last_offset: int
    leader_epoch: int
    segment: str
    segment_bytes: int
    bytes: int = 0
    previous: str = ""
    chain: str = ""

    @classmethod
    def of(cls, header: BatchHeader, segment: str, segment_bytes: int) -> FetchedBatch:
        """The batch with this header, in a segment of `segment_bytes` bytes."""
        return cls(
            header.topic_id_partition, header.base_offset, header.last_offset, header.leader_epoch, segment,
            segment_bytes, header.retained.bytes, header.previous, header.chain,
        )  # fmt: skip


class ByteLimit(NamedTuple):
    """The most bytes that a fetch may take from a group of partitions."""

    partitions: frozenset[TopicIdPartition]
    max_bytes: int


@dataclass(frozen=True)
class AppendPlan:
    """The batches to append, the log ends after them, and the partitions that need another fetch.

    `gaps`: partitions whose next batch begins above the log end, or exceeds a size limit. `diverged`: partitions whose
    leader has a batch at the log end that does not continue the follower's chain.
    """

    batches: tuple[FetchedBatch, ...] = ()
    log_ends: Mapping[TopicIdPartition, LogEnd] = field(default_factory=dict)
    gaps: frozenset[TopicIdPartition] = frozenset()
    diverged: frozenset[TopicIdPartition] = frozenset()

    def by_segment(self) -> dict[str, list[FetchedBatch]]:
        """The batches of each segment, in the plan's order."""
        grouped: dict[str, list[FetchedBatch]] = {}
        for batch in self.batches:
            grouped.setdefault(batch.segment, []).append(batch)
        return grouped

    def starts(self) -> dict[TopicIdPartition, str]:
        """The chain before each partition's first batch, which was the end of its log when the plan was made."""
        first: dict[TopicIdPartition, str] = {}
        for batch in self.batches:
            first.setdefault(batch.topic_id_partition, batch.previous)
        return first

    def bytes_by_partition(self) -> dict[TopicIdPartition, int]:
        """The size of each partition's batches, in bytes of keys and values."""
        total: dict[TopicIdPartition, int] = {}
        for batch in self.batches:
            total[batch.topic_id_partition] = total.get(batch.topic_id_partition, 0) + batch.bytes
        return total

    def without(self, partitions: Collection[TopicIdPartition]) -> AppendPlan:
        """The plan without these partitions."""
        batches = tuple(batch for batch in self.batches if batch.topic_id_partition not in partitions)
        ends = {p: end for p, end in self.log_ends.items() if p not in partitions}
        return AppendPlan(batches, ends, self.gaps - set(partitions), self.diverged - set(partitions))


def plan_appends(
    batches: Iterable[FetchedBatch],
    log_ends: Mapping[TopicIdPartition, LogEnd],
    max_bytes: int | None = None,
    partition_max_bytes: int | None = None,
    limits: Sequence[ByteLimit] = (),
) -> AppendPlan:
    """Chooses the batches that continue each partition's chain. Skips batches below the log end.

    A log has no holes, so a batch that begins above the log end stops its partition and leaves a gap. A batch at the
    log end with another previous chain shows that the histories differ. A partition with batches left out for size
    counts as a gap too, because it must be fetched again.

    Args:
        batches: the fetched batches, in any order; duplicates are allowed.
        log_ends: the follower's log ends, for the partitions that it fetches.
        max_bytes: limit on the total size of the segments to copy, in bytes of files; None for no limit.
        partition_max_bytes: limit for each partition, in bytes of keys and values; None for no limit.
        limits: further limits for groups of partitions, in bytes of keys and values.

    A limit never stops the first batch that it applies to: that batch could never be fetched otherwise.

    Kafka: `UnifiedLog.appendAsFollower`. Raft: AppendEntries. [FT-04, FT-10, FE-02, TH-01]
    """
    ends, stopped, diverged, chosen = dict(log_ends), set(), set(), []
    budget = _Budget(max_bytes, partition_max_bytes, limits)
    for batch in sorted(dict.fromkeys(batches), key=lambda b: (b.topic_id_partition, b.base_offset, b.last_offset)):
        end = ends.get(batch.topic_id_partition)
        if end is None or batch.last_offset < end.offset or batch.topic_id_partition in stopped:
            continue
        is_above = batch.base_offset > end.offset
        if not is_above and batch.previous != end.chain:
            diverged.add(batch.topic_id_partition)
        if is_above or batch.topic_id_partition in diverged or not budget.take(batch):
            stopped.add(batch.topic_id_partition)
            continue
        chosen.append(batch)
        ends[batch.topic_id_partition] = LogEnd(batch.last_offset + 1, batch.chain)
    return AppendPlan(tuple(chosen), ends, frozenset(stopped - diverged), frozenset(diverged))


class _Budget:
    """The bytes that a fetch may still take, in total, from each partition and under each limit."""

    def __init__(self, max_bytes: int | None, partition_max_bytes: int | None, limits: Sequence[ByteLimit]) -> None:
        self._max_bytes, self._partition_max_bytes, self._limits = max_bytes, partition_max_bytes, limits
        self._segments: dict[str, int] = {}
        self._partitions: dict[TopicIdPartition, int] = {}
        self._spent = [0] * len(limits)

    def take(self, batch: FetchedBatch) -> bool:
        """Reserves the bytes of a batch. Returns False, and reserves nothing, if they exceed a limit."""
        of_partition = self._partitions.get(batch.topic_id_partition, 0) + batch.bytes
        bounds = [index for index, limit in enumerate(self._limits) if batch.topic_id_partition in limit.partitions]
        total = sum(self._segments.values()) + (0 if batch.segment in self._segments else batch.segment_bytes)
        if (
            (self._max_bytes is not None and self._segments and total > self._max_bytes)
            or (self._partition_max_bytes is not None and batch.bytes < of_partition > self._partition_max_bytes)
            or any(self._spent[i] and self._spent[i] + batch.bytes > self._limits[i].max_bytes for i in bounds)
        ):
            return False
        for index in bounds:
            self._spent[index] += batch.bytes
        self._segments[batch.segment], self._partitions[batch.topic_id_partition] = batch.segment_bytes, of_partition
        return True
