"""What a client sees of a topic: its partitions, their leaders, and what the leaders say."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from replication.config import TopicConfig
from replication.errors import UnknownTopicOrPartitionException
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.cluster import Cluster
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import Replica, ReplicaTable
from schemas import LOG


class TopicView:
    """A client's handles on the tables of a cluster, kept open between requests."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._logs: dict[str, ReplicaLog] = {}
        self._replicas: dict[str, ReplicaTable] = {}

    def partitions(self, topic: str) -> dict[int, PartitionRegistration]:
        """The topic's partitions by number, as the metadata has them now.

        Raises UnknownTopicOrPartitionException if there is no such topic.
        """
        self.cluster.topics.refresh()
        self.cluster.metadata.refresh()
        found = self.cluster.topics.topics.get(topic)
        registrations = self.cluster.metadata.partitions.values()
        partitions = {r.partition: r for r in registrations if found and r.topic_id == found.topic_id}
        if not partitions:
            known = ", ".join(sorted(self.cluster.topics.topics)) or "none"
            raise UnknownTopicOrPartitionException(f"no topic {topic}; there are: {known}")
        return dict(sorted(partitions.items()))

    def config(self, topic: str) -> TopicConfig:
        """The topic's settings over those of the cluster."""
        return self.cluster.config.topic(self.cluster.topics.topics[topic].configs)

    def log(self, broker_id: int) -> ReplicaLog:
        """A handle on a broker's log."""
        root = self.cluster.broker_root(broker_id)
        if root.uri not in self._logs:
            self._logs[root.uri] = ReplicaLog.open(root.child(LOG.name))
        return self._logs[root.uri]

    def replicas(self, broker_id: int) -> Mapping[TopicIdPartition, Replica]:
        """What a broker says of its replicas now."""
        root = self.cluster.broker_root(broker_id)
        if root.uri not in self._replicas:
            self._replicas[root.uri] = ReplicaTable.open(root)
        self._replicas[root.uri].refresh()
        return self._replicas[root.uri].replicas


def pause(milliseconds: int, deadline: float) -> None:
    """Waits between two looks at a table, not beyond `deadline` of the monotonic clock."""
    left = deadline - time.monotonic()
    threading.Event().wait(max(0.0, min(milliseconds / 1000, left)))
