"""What a broker knows of the cluster: partitions and brokers, refreshed by new table versions only. [MC-01]"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from lakelog.replication.config import Config, TopicConfig
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.isr import IsrChange, IsrOutcomes
from lakelog.replication.protocol.liveness import Liveness
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.replica_table import ReplicaTable

logger = logging.getLogger(__name__)


class MetadataCache:
    """Immutable snapshots of metadata, topics and brokers, replaced as a whole. Kafka: `MetadataCache`. [MC-01, MC-03]

    A broker lives while its heartbeat counter moves, by this process's monotonic clock: no clocks are compared.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        self._liveness = Liveness(cluster.config.broker_session_timeout_ms, clock)
        self._replica_tables: dict[int, tuple[tuple[str, int], ReplicaTable]] = {}
        self._partitions: Mapping[TopicIdPartition, PartitionRegistration] = {}
        self._version = -1
        self._is_untold = False
        self._throttled: dict[str, dict[str, str]] = {}
        # Topics, and the settings that were asked for: a leader's look asks for them once a partition.
        self._topic_configs: tuple[Mapping[str, Topic], dict[str, TopicConfig]] = ({}, {})
        self.refresh()

    def refresh(self) -> bool:
        """Reads what has moved; tells whether metadata, topics or the roots of brokers have since it was told last.

        Where a table cannot be read that is told by the next look: what was read before it would else be forgotten.
        """
        if self.cluster.topics.refresh():
            self._throttled, self._is_untold = {}, True
        self.cluster.configs.refresh()
        self.cluster.metadata.refresh()
        # Compared with what this cache has shown: a change of an ISR may have brought newer rows along.
        self._is_untold |= self._version != self.cluster.metadata.version
        self._version, self._partitions = self.cluster.metadata.version, self.cluster.metadata.partitions
        roots = self._roots()
        self._liveness.look(self.cluster.refresh_brokers())
        is_untold, self._is_untold = self._is_untold or roots != self._roots(), False
        return is_untold

    def _roots(self) -> dict[int, str]:
        return {broker_id: registration.root for broker_id, registration in self.cluster.brokers.items()}

    @property
    def version(self) -> int:
        """Version of the metadata table that this cache shows."""
        return self._version

    @property
    def partitions(self) -> Mapping[TopicIdPartition, PartitionRegistration]:
        """Every partition of every topic."""
        return self._partitions

    def contains(self, partition: TopicIdPartition) -> bool:
        """Whether there is such a partition."""
        return partition in self._partitions

    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """Every broker that has registered."""
        return self.cluster.brokers

    def alive_brokers(self) -> set[int]:
        """Brokers whose heartbeat has moved within `broker.session.timeout.ms`, and that are not shutting down."""
        return self._liveness.look(self.brokers())

    def topic_config(self, registration: PartitionRegistration) -> TopicConfig:
        """The settings of a partition's topic over those of this broker, without any that make no sense."""
        topics, (of, known) = self.cluster.topics.topics, self._topic_configs
        if of is not topics:
            known = {}
            self._topic_configs = topics, known
        if registration.topic not in known:
            topic = topics.get(registration.topic)
            found, wrong = self.cluster.config.topic_as_far_as_known(topic.configs if topic else {})
            if wrong is not None:
                logger.error("topic %s: settings are left out: %s", registration.topic, wrong)
            known[registration.topic] = found
        return known[registration.topic]

    def config_of_broker(self, broker_id: int) -> Config:
        """The settings of a broker, of those that may change while it runs: as the table has them for it or for all,
        else as in the properties of this one. [TH-02]"""
        return self.cluster.config.dynamic(self.cluster.configs.of_broker(broker_id))

    def throttled_replicas(self, key: str) -> Mapping[str, str]:
        """What a setting of topics names, by topic; without those that name nothing. [TH-02]"""
        known = self._throttled
        if key not in known:
            topics = self.cluster.topics.topics
            known[key] = {name: topic.configs[key] for name, topic in topics.items() if topic.configs.get(key)}
        return known[key]

    def min_isr(self, registration: PartitionRegistration) -> int:
        """How many members the ISR of a partition needs for its HW to move. [HW-01]"""
        return effective_min_isr(self.topic_config(registration).min_insync_replicas, len(registration.replicas))

    def alter_partitions(self, changes: Iterable[IsrChange], who: str) -> IsrOutcomes:
        """Writes what a leader wants the ISRs to be; see `MetadataTable.alter_partitions`. [IS-05]"""
        return self.cluster.metadata.alter_partitions(changes, self._broker_epochs, {"who": who, "why": "isr"})

    def fence_isr_changes(self, partitions: Iterable[TopicIdPartition], broker_id: int) -> set[TopicIdPartition]:
        """Keeps a broker out of ISRs that are without it; see `MetadataTable.fence_isr_changes`. [OL-01]"""
        cause = {"who": f"broker-{broker_id}", "why": "offline replicas are given up"}
        return self.cluster.metadata.fence_isr_changes(partitions, broker_id, cause)

    def _broker_epochs(self) -> dict[int, int]:
        return {broker: found.broker_epoch for broker, found in self.cluster.refresh_brokers().items()}

    def broker_root(self, broker_id: int) -> StorageRoot:
        """Where a broker keeps its log. Raises BrokerNotAvailableException."""
        return self.cluster.broker_root(broker_id)

    def last_rows(self, broker_id: int) -> Mapping[TopicIdPartition, Replica]:
        """What another broker has said of its replicas when its table was last read: no look at its root."""
        registration, known = self.brokers().get(broker_id), self._replica_tables.get(broker_id)
        if registration is None or known is None:
            return {}
        process = self.cluster.storage_of(broker_id, registration.root).uri, registration.broker_epoch
        return known[1].replicas if known[0] == process else {}

    def replica_table(self, broker_id: int) -> ReplicaTable:
        """What another broker says of its replicas, as last read.

        A root that has moved is opened anew, and so is that of a new process: another one may lie there now.
        """
        root = self.broker_root(broker_id)
        process = (root.uri, self.brokers()[broker_id].broker_epoch)
        known = self._replica_tables.get(broker_id)
        if known is None or known[0] != process:
            known = self._replica_tables[broker_id] = process, ReplicaTable.open(root)
        return known[1]
