"""A partition's row in the `metadata` table.

Kafka: `PartitionRegistration` (KRaft), `LeaderAndIsr` and `ReplicaAssignment` (ZooKeeper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lakelog.replication.protocol.record_batch import OfPartition, TopicIdPartition

NO_LEADER = -1
NO_EPOCH = -1
LEADER_DURING_DELETE = -2  # its topic is being deleted: brokers stop serving it [TD-02]


@dataclass(frozen=True, slots=True)
class PartitionRegistration(OfPartition):
    """The assigned replicas (AR, preferred leader first), the leader, the ISR and the epochs that guard them. [TM-01]

    `isr_epochs`: the broker epoch under which each member joined the ISR; for the leader, the one of its election. The
    committing controller adds missing ones.
    """

    topic: str
    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int = 0
    controller_epoch: int = 0
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    isr_epochs: Mapping[int, int] = field(default_factory=dict, hash=False)

    def isr_epoch(self, member: int) -> int:
        """The broker epoch under which a member joined the ISR or was elected; -1 if unknown. Kafka: `BrokerState`,
        KIP-903."""
        return self.isr_epochs.get(member, NO_EPOCH)

    @property
    def followers(self) -> tuple[int, ...]:
        """The assigned replicas without the leader, in the order of the assignment."""
        return tuple(replica for replica in self.replicas if replica != self.leader)


Registrations: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]
