"""What identifies a partition and a record batch.

Kafka: `TopicIdPartition`, `DefaultRecordBatch`. A batch header is what a follower needs to know of a batch without
reading its records: it stands in the footer of the segment that holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


class TopicIdPartition(NamedTuple):
    """A partition of one incarnation of a topic: the id changes when a topic is deleted and made again."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


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
        """The partition as people write it: topic, hyphen, number."""
        return f"{self.topic}-{self.partition}"


class LogEnd(NamedTuple):
    """Where a partition's log ends: the next offset (LEO), and the hash of all that lies before it."""

    offset: int
    chain: str


@dataclass(frozen=True, slots=True)
class BatchHeader(OfPartition):
    """The header of a record batch: contiguous offsets of one partition, written under one leader epoch.

    Offsets are inclusive; `max_timestamp` is in microseconds since the epoch; `bytes` is the size of keys and values.
    Producer fields are -1 where the producer is not idempotent. `digest` is the hash of the records, `previous` the
    hash of all that lies before the batch, `chain` that of all up to its end: see `protocol.chain`.
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

    @property
    def records(self) -> int:
        """Number of records."""
        return self.last_offset - self.base_offset + 1

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.last_offset + 1
