"""Which fetched batches a follower appends: those that follow its own chain, each once.

Kafka: `ReplicaFetcherThread.processPartitionData`, which appends only at its own log end offset. Raft also compares the
entry before the first one: here that is the chain. [FT-10]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd, TopicIdPartition


class FetchedBatch(NamedTuple):
    """A batch that may be appended: where it lies, its offsets (the last one included), and the chains before and after
    it."""

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
        """A batch by its header, in a segment of so many bytes."""
        return cls(
            header.topic_id_partition, header.base_offset, header.last_offset, header.leader_epoch, segment,
            segment_bytes, header.bytes, header.previous, header.chain,
        )  # fmt: skip


class ByteLimit(NamedTuple):
    """How many bytes may be taken of some partitions together."""

    partitions: frozenset[TopicIdPartition]
    max_bytes: int


@dataclass(frozen=True)
class AppendPlan:
    """The batches to append, the log ends after them, and the partitions of which something is left out.

    `gaps`: their batches do not reach down to the log end, or would be too much at once. `diverged`: the leader has
    another batch at the log end than the one that follows the own chain.
    """

    batches: tuple[FetchedBatch, ...] = ()
    log_ends: Mapping[TopicIdPartition, LogEnd] = field(default_factory=dict)
    gaps: frozenset[TopicIdPartition] = frozenset()
    diverged: frozenset[TopicIdPartition] = frozenset()

    def by_segment(self) -> dict[str, list[FetchedBatch]]:
        """The batches of each segment, in the order they were planned."""
        grouped: dict[str, list[FetchedBatch]] = {}
        for batch in self.batches:
            grouped.setdefault(batch.segment, []).append(batch)
        return grouped

    def starts(self) -> dict[TopicIdPartition, str]:
        """The chain that each partition's first batch follows: that of its log when this was planned."""
        first: dict[TopicIdPartition, str] = {}
        for batch in self.batches:
            first.setdefault(batch.topic_id_partition, batch.previous)
        return first

    def bytes_by_partition(self) -> dict[TopicIdPartition, int]:
        """The size of each partition's batches."""
        total: dict[TopicIdPartition, int] = {}
        for batch in self.batches:
            total[batch.topic_id_partition] = total.get(batch.topic_id_partition, 0) + batch.bytes
        return total

    def without(self, partitions: Collection[TopicIdPartition]) -> AppendPlan:
        """The plan for the other partitions."""
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
    """The batches that follow each partition's chain, one after the other; those below the log end are skipped.

    A batch that begins above the log end leaves a gap: nothing more of its partition is appended, since a log has no
    holes. One that lies at the log end and follows another chain shows that the two histories differ. `max_bytes`
    bounds the sizes of the segments taken, `partition_max_bytes` those of one partition's batches, each of `limits`
    those of its partitions; the first of each is taken whatever its size, or it could never be fetched. A partition of
    which anything is left out counts as a gap, as it has to be fetched again.

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
    """How many bytes a fetch may still take, in all and of each partition."""

    def __init__(self, max_bytes: int | None, partition_max_bytes: int | None, limits: Sequence[ByteLimit]) -> None:
        self._max_bytes, self._partition_max_bytes, self._limits = max_bytes, partition_max_bytes, limits
        self._segments: dict[str, int] = {}
        self._partitions: dict[TopicIdPartition, int] = {}
        self._spent = [0] * len(limits)

    def take(self, batch: FetchedBatch) -> bool:
        """Takes the bytes of a batch, or tells that they are too many."""
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
