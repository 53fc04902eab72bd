"""A partition as the metadata table has it.

Kafka: `PartitionRegistration` (KRaft), `LeaderAndIsr` and `ReplicaAssignment` (ZooKeeper).
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.protocol.record_batch import TopicIdPartition

NO_LEADER = -1
LEADER_DURING_DELETE = -2  # its topic is being deleted: brokers stop to serve it [TD-02]


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    """Assigned replicas (AR, the preferred leader first), leader, ISR and the epochs that guard them. [TM-01]"""

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

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition."""
        return TopicIdPartition(self.topic_id, self.partition)

    @property
    def followers(self) -> tuple[int, ...]:
        """The assigned replicas but the leader, in the order of the assignment."""
        return tuple(replica for replica in self.replicas if replica != self.leader)
