"""Under which id, epoch and sequence numbers a producer sends: by them a log tells a repeat from something new.

Kafka: `TransactionManager`. KIP-98, KIP-360. [AP-06]
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from replication.protocol.producer_state import increment_sequence
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.cluster import Cluster
from replication.storage.producer_table import ProducerIdAndEpoch, new_producer_id


class ProducerIdentity:
    """An id and epoch, and the sequence number that comes next in each partition.

    Within one send a partition keeps the sequence that it began with, however often the records are sent. After a send
    that failed, or that was interrupted, nobody knows what became of its sequences: the identity must not be used
    again, since a log would take other records under them for a repeat.
    """

    def __init__(self, given: ProducerIdAndEpoch, may_renew: bool) -> None:
        self.producer_id = given.producer_id
        self._given = given
        self._may_renew = may_renew
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
        if not self._may_renew or partition in self._written:
            return False
        self._renewed[partition] = ProducerIdAndEpoch(new_producer_id(), 0)
        self._bases[partition] = 0
        return True


class ProducerName:
    """The name of a producer, which gives it its identities. Starting fences the producer that had the name before.

    A name that nobody uses expires. To be used is to be given an identity, so that a producer at work needs another one
    before half of that time has passed. The other half is for a process that stands still in the midst of a send.
    """

    def __init__(self, name: str, cluster: Cluster) -> None:
        self._name = name
        self._producers = cluster.producers
        self._seconds = cluster.config.transactional_id_expiration_ms / 2000
        self._owner = uuid.uuid4().hex
        self._has_started = False
        self._used_at = _now()

    @property
    def must_be_used(self) -> bool:
        """Whether the identity that was given last must not be used for another send. A machine that sleeps may have a
        monotonic clock that stands still, and the time of day may be set back: the one that says more holds."""
        return any(now - used_at >= self._seconds for now, used_at in zip(_now(), self._used_at, strict=True))

    def new_identity(self, deadline: float) -> ProducerIdentity:
        """The next identity. Raises ProducerFencedException if another producer has started under the name."""
        used_at = _now()
        take = self._producers.renew if self._has_started else self._producers.init_producer
        given = take(self._name, self._owner, deadline)
        self._has_started, self._used_at = True, used_at
        return ProducerIdentity(given, may_renew=False)


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()
