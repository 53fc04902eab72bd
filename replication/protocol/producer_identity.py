"""A producer's id, epoch and sequence numbers, by which a log recognises duplicates, and its sends in flight.

Kafka: `TransactionManager`, `TxnPartitionEntry`. KIP-98, KIP-360, KAFKA-5494. [AP-06]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import TopicIdPartition

_MOST = 20_000  # partitions that an identity knows before it forgets the idle ones

_Place: TypeAlias = tuple[str, int]  # a topic's name and a partition: the same place after the topic is made again


class ProducerIdAndEpoch(NamedTuple):
    """A producer's id and its epoch. A producer with a name gets a higher epoch each time it starts."""

    producer_id: int
    producer_epoch: int


class Turn(Enum):
    """Whether a send may send its records of a partition now."""

    NOW = auto()
    LATER = auto()
    NEEDS_IDENTITY = auto()


class ProducerIdentity:
    """A producer's id and epoch, and for each partition its sends in flight, in the order in which they began.

    The records of a send keep their sequence numbers in a partition, however often they are sent. After a failed or
    interrupted send nobody knows whether its sequences are in use, and a log would take new records under the same
    sequences for duplicates. So the identity is used up for that partition. The partition takes a new identity once no
    send that a log may hold is in flight there: a log orders the records of one identity by sequence, and not those of
    two.
    """

    def __init__(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        self.id_and_epoch = id_and_epoch
        self.is_used_up = False
        self._is_resumed = False
        self._partitions: dict[_Place, _PartitionSends] = {}

    def begin_send(self, topic: str, partitions: Iterable[int]) -> SendSequences:
        """Begins another send. In each of its partitions it comes after the sends that are in flight there."""
        if len(self._partitions) >= _MOST:
            self._forget_idle(topic)
        places = {n: self._partitions.setdefault((topic, n), _PartitionSends(self.id_and_epoch)) for n in partitions}
        send = SendSequences(self, places)
        for sends in places.values():
            sends.in_flight.append(send)
        return send

    def resume(self, topic: str, sequences: Mapping[int, int]) -> None:
        """Sets the sequence of each partition's next record, for a producer whose sequences were stored elsewhere. It
        holds under any topic id, so a topic that is made again meanwhile gets the same sequences."""
        self._is_resumed = True
        for partition, sequence in sequences.items():
            self._partitions.setdefault((topic, partition), _PartitionSends(self.id_and_epoch)).first = sequence

    def _forget_idle(self, topic: str) -> None:
        """Forgets the partitions of other topics that have nothing in flight. They would begin at sequence 0 again, and
        logs would take their records for duplicates, so this uses up the identity."""
        kept = {place: sends for place, sends in self._partitions.items() if sends.in_flight or place[0] == topic}
        if len(kept) < len(self._partitions) and not self._is_resumed:
            self._partitions = kept
            self.use_up()

    @property
    def partitions(self) -> int:
        """The number of partitions that it knows."""
        return len(self._partitions)

    def use_up(self) -> None:
        """From now on no partition may begin to use the present identity."""
        self.is_used_up = True

    def renew(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Sets a new identity, for partitions that have used up theirs, or have nothing in flight."""
        self.id_and_epoch, self.is_used_up = id_and_epoch, False

    def needs_renewal(self, sends: _PartitionSends) -> bool:
        """Whether this partition can go on only under an identity that is still to be taken."""
        return self.is_used_up or (sends.is_used_up and sends.id_and_epoch == self.id_and_epoch)


class _PartitionSends:
    """A partition's sends in flight, and the identity that they use. `next`: the next sequence under each topic id.
    `first`: the next one under a topic id that is not in `next`."""

    def __init__(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        self.id_and_epoch = id_and_epoch
        self.is_used_up = False
        self.first = 0
        self.next: dict[TopicIdPartition, int] = {}
        self.in_flight: list[SendSequences] = []

    def before(self, send: SendSequences) -> list[SendSequences]:
        """The sends in flight that began earlier."""
        return self.in_flight[: self.in_flight.index(send)] if send in self.in_flight else []

    def take(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Begins at sequence 0 under another identity."""
        self.id_and_epoch, self.is_used_up, self.first, self.next = id_and_epoch, False, 0, {}


class SendSequences:
    """The sequence numbers of one send, and its place among the sends in flight."""

    def __init__(self, identity: ProducerIdentity, places: dict[int, _PartitionSends]) -> None:
        self.identity = identity
        self._places = places
        self._bases: dict[TopicIdPartition, tuple[ProducerIdAndEpoch, int]] = {}
        self._appended: set[TopicIdPartition] = set()
        self._written: set[int] = set()

    @property
    def is_written(self) -> bool:
        """Whether a log may hold records of this send."""
        return bool(self._written)

    def is_written_to(self, partition: int) -> bool:
        """Whether a log may hold the send's records of this partition."""
        return partition in self._written

    def turn(self, partition: TopicIdPartition) -> Turn:
        """Whether the send may send its records of this partition now.

        All earlier sends must have been appended to it. A partition whose identity is used up takes a new one when no
        earlier send is in flight there. Until then only sends that a log may hold go on. If new ones did too, some send
        would always be in flight, and the partition would never take a new identity.
        """
        sends = self._places[partition.partition]
        before = sends.before(self)
        if any(partition not in send._appended for send in before):
            return Turn.LATER
        if partition.partition in self._written:
            return Turn.NOW
        if before:
            return Turn.LATER if sends.is_used_up or self.identity.is_used_up else Turn.NOW
        if self.identity.needs_renewal(sends):
            return Turn.NEEDS_IDENTITY
        if sends.is_used_up or sends.id_and_epoch != self.identity.id_and_epoch:
            sends.take(self.identity.id_and_epoch)
        return Turn.NOW

    def sequence(self, partition: TopicIdPartition) -> tuple[int, int, int]:
        """The producer id, the producer epoch, and the sequence of the send's first record in the partition. Call it
        only while `turn` is NOW."""
        sends = self._places[partition.partition]
        known = self._bases.get(partition)
        if known is None or known[0] != sends.id_and_epoch:
            known = self._bases[partition] = sends.id_and_epoch, sends.next.get(partition, sends.first)
        return (*known[0], known[1])

    def follows(self, partition: TopicIdPartition) -> bool:
        """Whether a log must have the producer's records before these: an earlier send is still in flight."""
        return bool(self._places[partition.partition].before(self))

    def note_written(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Notes that from now on a log may hold the send's records of these partitions, whatever the answer will be."""
        self._written.update(partition.partition for partition in partitions)

    def note_appended(self, partition: TopicIdPartition, records: int) -> None:
        """Notes that a log has the send's records of the partition. A repeated note changes nothing: later sends may
        have moved the next sequence since."""
        if partition not in self._appended:
            self._appended.add(partition)
            sends = self._places[partition.partition]
            sends.next[partition] = increment_sequence(self._bases[partition][1], records)

    def note_out_of_order(self, partition: TopicIdPartition) -> bool:
        """Notes that a leader has refused the send's records of the partition as out of order. Returns whether to send
        them again.

        They are sent again if an earlier send is in flight: the leader lacks its records, which come first. After an
        unclean election the leader may lack records that were acknowledged. Then the partition begins at sequence 0
        under a new identity, unless a log may hold records of this send: it would append them twice. KIP-360.
        """
        if self.follows(partition):
            return True
        if partition.partition in self._written:
            return False
        self._places[partition.partition].is_used_up = True
        return True

    def settle(self, succeeded: Collection[int]) -> None:
        """Ends the send. The identity is used up for each partition that has got a sequence and is not in
        `succeeded`."""
        begun = {partition.partition for partition in self._bases}
        for number, sends in self._places.items():
            if self in sends.in_flight:
                sends.in_flight.remove(self)
                sends.is_used_up = sends.is_used_up or (number in begun and number not in succeeded)
