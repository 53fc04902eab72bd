"""The offset of the next record in each partition that a member owns, and the offset at which it starts. Kafka:
`SubscriptionState`. [AP-04]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from lakelog.replication.clients.consumer_fetch import FetchedRecords
from lakelog.replication.clients.partition_reader import PartitionReader
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import IllegalStateException, NoOffsetForPartitionException
from lakelog.replication.protocol.delayed_operation import check_offset_available
from lakelog.replication.protocol.partition_assignor import AssignedPartition
from lakelog.replication.protocol.record_batch import TopicPartition


class Positions:
    """The next offset of each partition; None until `auto.offset.reset` has determined it."""

    def __init__(self) -> None:
        self._next: dict[AssignedPartition, int | None] = {}
        self.committed: dict[AssignedPartition, int] = {}
        self._paused: set[AssignedPartition] = set()
        self._before: dict[AssignedPartition, int | None] = {}  # the offsets before the last `advance`

    @property
    def partitions(self) -> set[AssignedPartition]:
        """All partitions that the member owns."""
        return set(self._next)

    @property
    def without_offset(self) -> list[AssignedPartition]:
        """The partitions without an offset yet."""
        return [partition for partition, offset in self._next.items() if offset is None]

    @property
    def readable(self) -> dict[AssignedPartition, int]:
        """The offsets to fetch from, without paused partitions. The partition that has waited longest for records is
        the first."""
        return {p: offset for p, offset in self._next.items() if offset is not None and p not in self._paused}

    def uncommitted(self, partitions: Collection[AssignedPartition] | None = None) -> dict[AssignedPartition, int]:
        """The offsets that were not committed yet: of these partitions, or of all."""
        chosen = self._next if partitions is None else partitions
        found = {p: self._next.get(p) for p in chosen}
        return {p: offset for p, offset in found.items() if offset is not None and self.committed.get(p) != offset}

    def start(self, partition: AssignedPartition, committed: int | None) -> None:
        """Adds a partition that was taken. `committed`: the group's committed offset, at which reading begins."""
        self._next[partition] = committed
        if committed is not None:
            self.committed[partition] = committed

    def set(self, partition: AssignedPartition, offset: int | None) -> None:
        """Sets the offset of the next record; None to determine it anew."""
        self._next[partition] = offset

    def offset(self, partition: AssignedPartition) -> int | None:
        """The offset of the next record; None if there is none yet."""
        return self._next[partition]

    def advance(self, fetched: Mapping[TopicPartition, FetchedRecords]) -> None:
        """Moves the offsets to the end of records that are to be returned. Their partitions come last in the next
        fetch, so that none is starved. A partition also moves over records that the log cleaner has removed."""
        ends = {self.find(*key): found.next_offset for key, found in fetched.items() if found.error is None}
        moved = {partition: end for partition, end in ends.items() if end != self._next[partition]}
        self._before = {partition: self._next[partition] for partition in moved}
        self._next = {**{p: offset for p, offset in self._next.items() if p not in moved}, **moved}

    def hand_over(self) -> None:
        """Notes that the caller has the records of the last `advance`."""
        self._before = {}

    def take_back(self) -> None:
        """Undoes the last `advance`, unless the caller has its records."""
        self._next.update({p: offset for p, offset in self._before.items() if p in self._next})
        self._before = {}

    def drop(self, partitions: Iterable[AssignedPartition]) -> None:
        """Removes partitions that are given up, or lost."""
        for partition in partitions:
            self._next.pop(partition, None)
            self.committed.pop(partition, None)
            self._paused.discard(partition)

    def pause(self, partitions: Iterable[tuple[str, int]], is_paused: bool) -> None:
        """Pauses these partitions, or resumes them. A paused one returns no records. Raises IllegalStateException."""
        for found in [self.find(*partition) for partition in partitions]:
            self._paused.add(found) if is_paused else self._paused.discard(found)

    def find(self, topic: str, partition: int) -> AssignedPartition:
        """The assigned partition. Raises IllegalStateException if it is not assigned to this consumer."""
        for found in self._next:
            if (found.topic, found.partition) == (topic, partition):
                return found
        names = ", ".join(sorted(found.name for found in self._next)) or "nothing"
        raise IllegalStateException(f"{topic}-{partition} is not assigned to this consumer, which has {names}")


def starting_offset(view: TopicView, partition: AssignedPartition, reset: str) -> int:
    """The offset at which to start without a committed one: the log start for `earliest`, the high watermark for
    `latest`.

    Raises NoOffsetForPartitionException for `none`, OffsetNotAvailableException while a new leader does not know how
    much is committed, UnknownTopicIdException if the topic was made again, and the error of a partition without leader.
    """
    name, number = partition.name, partition.partition
    if reset == "none":
        raise NoOffsetForPartitionException(f"{name}: the group has committed no offset, and auto.offset.reset is none")
    seen = TopicWatch(view, partition.topic, [number], partition.topic_id).leadership(number)
    opened = PartitionReader(view).open(seen)
    if reset == "earliest":
        return opened.log.log_start_offset
    check_offset_available(None, opened.high_watermark, opened.log.epoch_start, name)
    return opened.high_watermark


def all_records(fetched: Mapping[TopicPartition, FetchedRecords]) -> pa.Table:
    """The records of all partitions, in the order of the fetch."""
    empty = FetchedRecords().records
    return pa.concat_tables([empty, *(found.records for found in fetched.values())])
