"""A partition as the metadata table has it.

Kafka: `PartitionRegistration` (KRaft), `LeaderAndIsr` and `ReplicaAssignment` (ZooKeeper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lakelog.replication.protocol.record_batch import OfPartition, TopicIdPartition

NO_LEADER = -1
NO_EPOCH = -1
LEADER_DURING_DELETE = -2  # its topic is being deleted: brokers stop to serve it [TD-02]


@dataclass(frozen=True, slots=True)
class PartitionRegistration(OfPartition):
    """Assigned replicas (AR, the preferred leader first), leader, ISR and the epochs that guard them. [TM-01]

    `isr_epochs`: under which broker epoch each member of the ISR joined it; the leader's is that of its election. A
    member without one gets it from the controller that commits.
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
        """The broker epoch under which a member of the ISR joined it, or was elected. Kafka: `BrokerState`, KIP-903."""
        return self.isr_epochs.get(member, NO_EPOCH)

    @property
    def followers(self) -> tuple[int, ...]:
        """The assigned replicas but the leader, in the order of the assignment."""
        return tuple(replica for replica in self.replicas if replica != self.leader)


Registrations: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]
