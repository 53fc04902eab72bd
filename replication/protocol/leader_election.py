"""Who leads a partition, and who is in sync when it begins to."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration


def new_partition(
    topic: str, topic_id: str, partition: int, replicas: Sequence[int], live: Collection[int]
) -> PartitionRegistration:
    """The first state of a partition: the first live replica leads, the live ones are the ISR, the epoch is 0.

    Every log is empty, so that everybody alive is in sync. Without a live replica there is no leader and no ISR:
    Kafka keeps such a partition out of its metadata, here it waits in it under `NO_LEADER`.

    Kafka: `ZkPartitionStateMachine.initializeLeaderAndIsrForPartitions`. [LE-03]
    """
    isr = tuple(replica for replica in replicas if replica in live)
    leader = isr[0] if isr else NO_LEADER
    return PartitionRegistration(topic, topic_id, partition, tuple(replicas), leader, leader_epoch=0, isr=isr)
