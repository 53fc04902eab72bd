"""A broker's view of the cluster: topics, partitions and brokers, read again when a table has moved. [MC-01]"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from lakelog.replication.config import Config, TopicConfig
from lakelog.replication.protocol.broker_registration import BrokerRegistration, Liveness
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.isr import IsrChange, IsrOutcomes
from lakelog.replication.protocol.partition_recovery import AHEAD
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_listeners import CommitListener, CommitWaiter
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable

logger = logging.getLogger(__name__)


class MetadataCache:
    """Immutable snapshots of metadata, topics and brokers, replaced as a whole. Kafka: `MetadataCache`. [MC-01, MC-03]

    A broker is alive while its heartbeat moves, by this process's monotonic clock. No clocks are compared.
    """

    def __init__(
        self, cluster: Cluster, clock: Callable[[], float] = time.monotonic, listener: CommitListener | None = None
    ) -> None:
        self.cluster = cluster
        self.listener = (listener or CommitWaiter()).listen(MetadataTable.folder(cluster.root).uri)
        self._liveness = Liveness(cluster.config.broker_session_timeout_ms, clock)
        self._replica_tables: dict[int, tuple[tuple[str, int], ReplicaTable]] = {}
        self._partitions: Mapping[TopicIdPartition, PartitionRegistration] = {}
        self._version = -1
        self._is_unreported = False
        self._throttled: dict[str, dict[str, str]] = {}
        # The settings of the topics in one snapshot, by name: a leader round needs them once for each partition.
        self._topic_configs: tuple[Mapping[str, Topic], dict[str, TopicConfig]] = ({}, {})
        self.refresh()

    def refresh(self) -> bool:
        """Reads the tables that have moved. Returns whether metadata, topics or a broker's root have changed since the
        last call that returned.

        If a table cannot be read, it raises KafkaStorageException, and the next call reports the changes read so far.
        """
        self._have_topics_moved(self.cluster.topics.refresh())
        self.cluster.configs.refresh()
        self.cluster.metadata.refresh()
        return self._show(self.cluster.refresh_brokers)

    def poll(self) -> bool:
        """Like `refresh`, but in an object store it may take older polls of this process."""
        self._have_topics_moved(self.cluster.topics.poll())
        self.cluster.configs.refresh(LONGEST_SECONDS)
        self.cluster.metadata.poll()
        return self._show(self.cluster.poll_brokers)

    def _have_topics_moved(self, have_they: bool) -> None:
        if have_they:
            self._throttled, self._is_unreported = {}, True

    def _show(self, read_brokers: Callable[[], Mapping[int, BrokerRegistration]]) -> bool:
        # Compare with the version that this cache has shown: writing an ISR change may have read newer rows already.
        self._is_unreported |= self._version != self.cluster.metadata.version
        self._version, self._partitions = self.cluster.metadata.version, self.cluster.metadata.partitions
        roots = self._roots()
        self._liveness.observe(read_brokers())
        is_unreported, self._is_unreported = self._is_unreported or roots != self._roots(), False
        return is_unreported

    def _roots(self) -> dict[int, str]:
        return {broker_id: registration.root for broker_id, registration in self.cluster.brokers.items()}

    @property
    def version(self) -> int:
        """The version of the metadata table that this cache shows."""
        return self._version

    @property
    def partitions(self) -> Mapping[TopicIdPartition, PartitionRegistration]:
        """Every partition of every topic."""
        return self._partitions

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name: the same object as long as no topic has changed."""
        return self.cluster.topics.topics

    def contains(self, partition: TopicIdPartition) -> bool:
        """Whether the metadata has this partition."""
        return partition in self._partitions

    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """Every broker that has ever registered, by id."""
        return self.cluster.brokers

    def alive_brokers(self) -> set[int]:
        """The brokers whose heartbeat has moved within `broker.session.timeout.ms`, and that have reported neither a
        shutdown nor a storage error."""
        return self._liveness.observe(self.brokers())

    def topic_config(self, registration: PartitionRegistration) -> TopicConfig:
        """The settings of a partition's topic, over this broker's defaults. Invalid ones are logged and left out."""
        topics, (of, known) = self.topics, self._topic_configs
        if of is not topics:
            known = {}
            self._topic_configs = topics, known
        if registration.topic not in known:
            topic = topics.get(registration.topic)
            found, wrong = self.cluster.config.topic_as_far_as_known(topic.configs if topic else {})
            if wrong is not None:
                logger.error("topic %s: invalid settings are left out: %s", registration.topic, wrong)
            known[registration.topic] = found
        return known[registration.topic]

    def config_of_broker(self, broker_id: int) -> Config:
        """A broker's settings. Dynamic ones come from the configs table, for that broker or else for all brokers; the
        others are this broker's own. KIP-226. [TH-02]"""
        return self.cluster.config.dynamic(self.cluster.configs.of_broker(broker_id))

    def throttled_replicas(self, key: str) -> Mapping[str, str]:
        """The values of a topic setting, such as `leader.replication.throttled.replicas`, by topic name. Topics without
        a value are left out. [TH-02]"""
        known = self._throttled
        if key not in known:
            known[key] = {name: topic.configs[key] for name, topic in self.topics.items() if topic.configs.get(key)}
        return known[key]

    def min_isr(self, registration: PartitionRegistration) -> int:
        """The number of members that the ISR needs for the HW to rise: `min.insync.replicas`, but at most the number
        of replicas. KIP-966. [HW-01]"""
        return effective_min_isr(self.topic_config(registration).min_insync_replicas, len(registration.replicas))

    def alter_partitions(self, changes: Iterable[IsrChange], who: str) -> IsrOutcomes:
        """Writes a leader's ISR changes and returns their outcomes, see `MetadataTable.alter_partitions`.

        Raises KafkaStorageException if the outcome is unknown. [IS-05]
        """
        return self.cluster.metadata.alter_partitions(changes, self._broker_epochs, {"who": who, "why": "isr"})

    def fence_isr_changes(self, partitions: Iterable[TopicIdPartition], broker_id: int) -> set[TopicIdPartition]:
        """Makes pending changes fail that would add a broker to an ISR. Returns the partitions whose ISR is without the
        broker, see `MetadataTable.fence_isr_changes`. Raises KafkaStorageException if the outcome is unknown. [OL-01]
        """
        cause = {"who": f"broker-{broker_id}", "why": "offline replicas are given up"}
        return self.cluster.metadata.fence_isr_changes(partitions, broker_id, cause)

    def _broker_epochs(self) -> dict[int, int]:
        return {broker: found.broker_epoch for broker, found in self.cluster.refresh_brokers().items()}

    def last_rows(self, broker_id: int) -> Mapping[TopicIdPartition, ReplicaStatus]:
        """The replica rows of another broker as last read. It does not read the broker's root. Empty if none were read
        since the broker's root or epoch changed."""
        registration, known = self.brokers().get(broker_id), self._replica_tables.get(broker_id)
        if registration is None or known is None:
            return {}
        return known[1].replicas if known[0] == (registration.root, registration.broker_epoch) else {}

    def check_generation(self, broker_id: int) -> None:
        """Raises FencedClusterRootException if the last rows of another broker show that the cluster root was recovered
        elsewhere; other errors as `Cluster.check_log_generation`. A broker whose own root was not given to the
        recovery, or was restored from before it, would lead on here, and acknowledge records that the others lack.

        It reads that broker's log only if the rows have an epoch that no restart of the broker explains."""
        registration = self.brokers().get(broker_id)
        row = next(iter(self.last_rows(broker_id).values()), None)
        if registration is not None and row is not None and row.broker_epoch >= registration.broker_epoch + AHEAD:
            self.cluster.check_log_generation(self.cluster.storage_of(broker_id, registration.root))

    def replica_table(self, broker_id: int) -> ReplicaTable:
        """The `replicas` table of another broker; the caller refreshes it.

        It is opened again when the broker's root or epoch changes: a new process may have another root at the same URI.
        Raises BrokerNotAvailableException if the broker has never registered, and InconsistentClusterIdException or
        KafkaStorageException if the table cannot be opened.
        """
        registration, known = self.cluster.registration(broker_id), self._replica_tables.get(broker_id)
        process = registration.root, registration.broker_epoch
        if known is None or known[0] != process:
            root = self.cluster.storage_of(broker_id, registration.root)
            known = self._replica_tables[broker_id] = process, ReplicaTable.open(root)
            self.listener.listen(ReplicaTable.folder(root).uri)
        return known[1]
