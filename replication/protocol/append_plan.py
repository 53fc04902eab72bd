"""Which parts of fetched batches a follower appends: what follows its own log end without a gap, each offset once.

Kafka: `ReplicaFetcherThread.processPartitionData`, which appends only at its own log end offset. [FT-10]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replication.protocol.record_batch import TopicIdPartition


class FetchedBatch(NamedTuple):
    """A batch that may be appended: where it lies, and its offsets (the last one included)."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    leader_epoch: int
    segment: str
    segment_bytes: int
    bytes: int = 0


class ByteLimit(NamedTuple):
    """How many bytes may be taken of some partitions together."""

    partitions: frozenset[TopicIdPartition]
    max_bytes: int


class Range(NamedTuple):
    """The part of a batch to append: offsets from `start` to before `stop`."""

    batch: FetchedBatch
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the batch."""
        return self.start == self.batch.base_offset


@dataclass(frozen=True)
class AppendPlan:
    """What to append, the log end offsets after it, and the partitions whose batches do not follow their log end."""

    ranges: tuple[Range, ...] = ()
    log_end_offsets: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    gaps: frozenset[TopicIdPartition] = frozenset()

    def by_segment(self) -> dict[str, list[Range]]:
        """The ranges of each segment, in the order they were planned."""
        grouped: dict[str, list[Range]] = {}
        for planned in self.ranges:
            grouped.setdefault(planned.batch.segment, []).append(planned)
        return grouped

    def starts(self) -> dict[TopicIdPartition, int]:
        """Where each partition's part begins: its log end offset when this was planned."""
        first: dict[TopicIdPartition, int] = {}
        for planned in self.ranges:
            first.setdefault(planned.batch.partition, planned.start)
        return first

    def bytes_by_partition(self) -> dict[TopicIdPartition, int]:
        """The size of each partition's batches."""
        total: dict[TopicIdPartition, int] = {}
        for planned in self.ranges:
            total[planned.batch.partition] = total.get(planned.batch.partition, 0) + planned.batch.bytes
        return total

    def without(self, partitions: Collection[TopicIdPartition]) -> AppendPlan:
        """The plan for the other partitions."""
        ranges = tuple(planned for planned in self.ranges if planned.batch.partition not in partitions)
        ends = {p: end for p, end in self.log_end_offsets.items() if p not in partitions}
        return AppendPlan(ranges, ends, self.gaps - set(partitions))


def plan_appends(
    batches: Iterable[FetchedBatch],
    log_end_offsets: Mapping[TopicIdPartition, int],
    max_bytes: int | None = None,
    partition_max_bytes: int | None = None,
    limits: Sequence[ByteLimit] = (),
) -> AppendPlan:
    """Batches that follow each partition's log end are appended, from the log end on; those below it are skipped.

    The first batch that begins above the log end is a gap: nothing more of its partition is appended, since a log has
    no holes. `max_bytes` bounds the sizes of the segments taken, `partition_max_bytes` those of one partition's
    batches, each of `limits` those of its partitions; the first of each is taken whatever its size, or it could never
    be fetched. What is left out counts as a gap, as it has to be fetched again.

    Kafka: `UnifiedLog.appendAsFollower`. [FT-04, FT-10, FE-02, TH-01]
    """
    ends, gaps, ranges = dict(log_end_offsets), set(), []
    taken: dict[str, int] = {}
    fetched: dict[TopicIdPartition, int] = {}
    spent = [0] * len(limits)
    for batch in sorted(dict.fromkeys(batches), key=lambda b: (b.partition, b.base_offset, b.last_offset)):
        end = ends.get(batch.partition)
        if end is None or batch.last_offset < end or batch.partition in gaps:
            continue
        is_too_much = max_bytes is not None and bool(taken) and _total(taken, batch) > max_bytes
        total = fetched.get(batch.partition, 0) + batch.bytes
        is_too_much_of_one = partition_max_bytes is not None and batch.bytes < total and total > partition_max_bytes
        bounds = [index for index, limit in enumerate(limits) if batch.partition in limit.partitions]
        is_above_limit = any(spent[i] and spent[i] + batch.bytes > limits[i].max_bytes for i in bounds)
        if batch.base_offset > end or is_too_much or is_too_much_of_one or is_above_limit:
            gaps.add(batch.partition)
            continue
        for index in bounds:
            spent[index] += batch.bytes
        taken[batch.segment], fetched[batch.partition] = batch.segment_bytes, total
        ranges.append(Range(batch, max(end, batch.base_offset), batch.last_offset + 1))
        ends[batch.partition] = batch.last_offset + 1
    return AppendPlan(tuple(ranges), ends, frozenset(gaps))


def _total(taken: Mapping[str, int], batch: FetchedBatch) -> int:
    return sum(taken.values()) + (0 if batch.segment in taken else batch.segment_bytes)
