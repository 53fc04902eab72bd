"""Identifiers of partitions, and the header of a record batch.

A batch header has all that a follower must know about a batch without reading its records. It is in the footer of the
segment with the batch. Kafka: `TopicIdPartition`, `DefaultRecordBatch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


class TopicIdPartition(NamedTuple):
    """A partition of one incarnation of a topic: the id changes when the topic is deleted and made again."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class TopicPartition(NamedTuple):
    """A partition by the name of its topic, as users give it. Kafka: `TopicPartition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OfPartition:
    """A value that belongs to one partition of a topic."""

    __slots__ = ()

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def name(self) -> str:
        """The partition for people: topic, hyphen, number."""
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """The offsets of a partition from `start` to before `stop`, wherever their records lie."""

    start: int
    stop: int


class LogEnd(NamedTuple):
    """The end of a partition's log: the next offset (LEO), and the chain before it."""

    offset: int
    chain: str


NO_HORIZON = -1


class Retained(NamedTuple):
    """The records of a batch that are in the log: how many, the bytes of their keys and values, and their digest.

    `delete_horizon`: when its tombstones may go, in microseconds since the epoch; -1 if it has none, or if the log
    cleaner has not been through it. Kafka: `MemoryRecords.filterTo`; `DefaultRecordBatch.deleteHorizonMs`, KIP-534.
    """

    records: int
    bytes: int
    digest: str
    delete_horizon: int = NO_HORIZON


@dataclass(frozen=True, slots=True)
class BatchHeader(OfPartition):
    """The header of a record batch: contiguous offsets of one partition, written under one leader epoch.

    Offsets are inclusive. `max_timestamp`: microseconds since the epoch. `bytes`: size of keys and values. Producer
    fields are -1 if the producer is not idempotent. `digest`: the hash of the records. `previous` and `chain`: the
    chains before and after the batch, see `protocol.chain`.

    All these fields stay as they are when the log cleaner removes records, so that replicas which it has cleaned at
    different times have equal headers and chains. `cleaned` has what it has left; None where it has changed nothing.
    """

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    bytes: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    digest: str = ""
    previous: str = ""
    chain: str = ""
    cleaned: Retained | None = field(default=None, compare=False)

    @property
    def retained(self) -> Retained:
        """The records that are in the log: all, unless the log cleaner has removed some."""
        return self.cleaned or Retained(self.records, self.bytes, self.digest)

    @property
    def records(self) -> int:
        """Number of records, with those that the log cleaner has removed: one for each offset."""
        return self.last_offset - self.base_offset + 1

    def retained_within(self, offsets: OffsetRange) -> tuple[int, int]:
        """About how many records of the batch are at these offsets, and how many bytes their keys and values have: a
        part of a batch counts in proportion to its offsets."""
        inside = max(0, min(offsets.stop, self.next_offset) - max(offsets.start, self.base_offset))
        return self.retained.records * inside // self.records, self.retained.bytes * inside // self.records

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.last_offset + 1
