"""A producer's id, epoch and sequence numbers, by which a log recognises duplicates.

Kafka: `TransactionManager`. KIP-98, KIP-360. [AP-06]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import TopicIdPartition


class ProducerIdAndEpoch(NamedTuple):
    """A producer's id and its epoch. A producer with a name gets a higher epoch each time it starts."""

    producer_id: int
    producer_epoch: int


class ProducerIdentity:
    """A producer's id and epoch, with the next sequence number of each partition.

    Within one send a partition keeps its first sequence number, however often the records are sent. After a failed or
    interrupted send nobody knows whether its sequences are in use. Then the identity must not be used again, because a
    log would take new records under the same sequences for duplicates. `new_id`: creates another id; None for a
    producer with a name.
    """

    def __init__(self, given: ProducerIdAndEpoch, new_id: Callable[[], int] | None) -> None:
        self.producer_id = given.producer_id
        self._given = given
        self._new_id = new_id
        self._renewed: dict[TopicIdPartition, ProducerIdAndEpoch] = {}
        self._next: dict[TopicIdPartition, int] = {}
        self._bases: dict[TopicIdPartition, int] = {}
        self._written: set[TopicIdPartition] = set()

    def begin_send(self) -> None:
        """Begins another send: from now on each partition uses its next sequence."""
        self._bases, self._written = {}, set()

    def sequence(self, partition: TopicIdPartition) -> tuple[int, int, int]:
        """The producer id, the producer epoch, and the sequence of the send's first record in the partition."""
        base = self._bases.setdefault(partition, self._next.get(partition, 0))
        return (*self._renewed.get(partition, self._given), base)

    def writes(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Notes that a log may now hold the send's records of these partitions, whatever the answer is."""
        self._written.update(partitions)

    def appended(self, partition: TopicIdPartition, records: int) -> None:
        """Notes that a log has the send's records of the partition."""
        self._next[partition] = increment_sequence(self._bases[partition], records)

    def begin_anew(self, partition: TopicIdPartition) -> bool:
        """Restarts the partition's sequence at 0 under a new id; returns whether that was possible.

        It is needed after an unclean election, when the leader lacks records of earlier sends. Refused once a log may
        hold records of this send, because a new id would append them again. Refused for a producer with a name, because
        a new epoch would fence a newer producer of that name. KIP-360.
        """
        if self._new_id is None or partition in self._written:
            return False
        self._renewed[partition] = ProducerIdAndEpoch(self._new_id(), 0)
        self._bases[partition] = 0
        return True
