"""The active controller's view of the cluster: brokers, topics, and partitions and replicas with their states.

Kafka: `ControllerContext`. The controller reads it from the tables at failover, and a `Decision` makes the next one.
[FO-05]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lakelog.replication.config import Config
from lakelog.replication.protocol import partition_states, replica_states
from lakelog.replication.protocol.assignment import cordoned_brokers
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Configs, Topic


class PartitionAndReplica(NamedTuple):
    """A replica: the partition, and the broker that holds it."""

    topic_id_partition: TopicIdPartition
    broker_id: int


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A live broker. `metadata_version` is the version of `metadata` that it has applied.

    `log_epoch` is the broker epoch under which it first registered with its present log. `offline` has the partitions
    of which it has a broken file, so that it can neither lead nor follow them. [OL-01]
    """

    broker_epoch: int
    shutting_down: bool = False
    metadata_version: int = -1
    rack: str | None = None
    log_epoch: int = 0
    offline: frozenset[TopicIdPartition] = frozenset()

    @classmethod
    def of(cls, registration: BrokerRegistration) -> BrokerView:
        """The view of a broker with this registration."""
        r = registration
        return cls(r.broker_epoch, r.shutting_down, r.metadata_version, r.rack, r.log_epoch, r.offline)


@dataclass(frozen=True)
class ControllerContext:
    """One consistent view. `brokers` has the live brokers, `registered` the ids of all that have registered, and
    `unregistered` those of which an operator has removed the registration.

    `deletions` has, by topic id, the version of `metadata` at which brokers delete their replicas.
    """

    controller_epoch: int
    config: Config = field(default_factory=Config)
    brokers: Mapping[int, BrokerView] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    partitions: Mapping[TopicIdPartition, PartitionRegistration] = field(default_factory=dict)
    partition_states: Mapping[TopicIdPartition, str] = field(default_factory=dict)
    replica_states: Mapping[PartitionAndReplica, str] = field(default_factory=dict)
    deletions: Mapping[str, int] = field(default_factory=dict)
    configs: Configs = field(default_factory=dict)
    registered: frozenset[int] = frozenset()
    unregistered: frozenset[int] = frozenset()

    @property
    def known_brokers(self) -> frozenset[int]:
        """All brokers, live or dead."""
        return self.registered | self.brokers.keys()

    @property
    def live_brokers(self) -> frozenset[int]:
        """The live brokers that are not shutting down, and so may be elected. [FO-05]"""
        return frozenset(broker for broker, view in self.brokers.items() if not view.shutting_down)

    @property
    def cordoned_brokers(self) -> frozenset[int]:
        """The known brokers that get no new replica. KIP-1066. [TM-02]"""
        return cordoned_brokers(self.configs, self.known_brokers)

    @property
    def shutting_down_brokers(self) -> frozenset[int]:
        """The live brokers that have asked for a controlled shutdown. [CS-04]"""
        return frozenset(broker for broker, view in self.brokers.items() if view.shutting_down)

    @property
    def offline_replicas(self) -> list[PartitionAndReplica]:
        """The assigned replicas that live brokers report as offline, in order. [LI-04]"""
        return [
            PartitionAndReplica(partition, broker)
            for broker, view in sorted(self.brokers.items())
            for partition in sorted(view.offline)
            if partition in self.partitions and broker in self.partitions[partition].replicas
        ]

    def with_partitions(self, partitions: Mapping[TopicIdPartition, PartitionRegistration]) -> ControllerContext:
        """The same view with the newest rows of `metadata`, because leaders may have changed ISRs. [IS-05, LE-06]

        A partition that has lost its leader is Offline: our own commit has landed, and its reply was lost.
        """
        online, offline = partition_states.PartitionState.ONLINE, partition_states.PartitionState.OFFLINE
        states = self.partition_states
        lost = [p for p, r in partitions.items() if r.leader == NO_LEADER and states.get(p) == online]
        return replace(self, partitions=partitions, partition_states={**states, **dict.fromkeys(lost, offline)})

    def started(self, metadata_version: int) -> ControllerContext:
        """The view with the initial states of both state machines. Deletions begin again. [PS-03, RS-04, TD-04]"""
        alive = {broker: view.broker_epoch for broker, view in self.brokers.items()}
        partitions = {p: partition_states.initial_state(r, alive) for p, r in self.partitions.items()}
        replicas = {
            PartitionAndReplica(p, broker): replica_states.initial_state(broker, alive)
            for p, r in self.partitions.items()
            for broker in r.replicas
        }
        begun = {r.topic_id for r in self.partitions.values() if r.leader == LEADER_DURING_DELETE}
        deleting = {topic.topic_id for topic in self.topics.values() if topic.deleting}
        deletions = dict.fromkeys(sorted(begun & deleting), metadata_version)
        return replace(self, partition_states=partitions, replica_states=replicas, deletions=deletions)
