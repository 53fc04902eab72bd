"""Under which id, epoch and sequence numbers a producer sends: by them a log tells a repeat from something new.

Kafka: `TransactionManager`. KIP-98, KIP-360. [AP-06]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import TopicIdPartition


class ProducerIdAndEpoch(NamedTuple):
    """Who wrote a batch: the id, and which start under its name."""

    producer_id: int
    producer_epoch: int


class ProducerIdentity:
    """An id and epoch, and the sequence number that comes next in each partition.

    Within one send a partition keeps the sequence that it began with, however often the records are sent. After a send
    that failed, or that was interrupted, nobody knows what became of its sequences: the identity must not be used
    again, since a log would take other records under them for a repeat. `new_id`: makes another id; None under a name.
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
        """From now on sequences are those of another send."""
        self._bases, self._written = {}, set()

    def sequence(self, partition: TopicIdPartition) -> tuple[int, int, int]:
        """Producer id, producer epoch, and the sequence number of the send's first record in the partition."""
        base = self._bases.setdefault(partition, self._next.get(partition, 0))
        return (*self._renewed.get(partition, self._given), base)

    def writes(self, partitions: Iterable[TopicIdPartition]) -> None:
        """From now on a log may hold the send's records of these partitions, whatever the answer is."""
        self._written.update(partitions)

    def appended(self, partition: TopicIdPartition, records: int) -> None:
        """The send's records of the partition are in a log."""
        self._next[partition] = increment_sequence(self._bases[partition], records)

    def begin_anew(self, partition: TopicIdPartition) -> bool:
        """Starts the partition's sequence over, at a leader that lacks what earlier sends have put into its log.

        That happens after an unclean election. Refused once a log may hold records of this send: under another id they
        would be appended again. Refused under a name, since it would fence a newer producer of that name. KIP-360.
        """
        if self._new_id is None or partition in self._written:
            return False
        self._renewed[partition] = ProducerIdAndEpoch(self._new_id(), 0)
        self._bases[partition] = 0
        return True
