"""What a client sees of a topic: its partitions, their leaders, and what the leaders say."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from replication.config import TopicConfig
from replication.errors import LakelogException, LeaderNotAvailableException, UnknownTopicOrPartitionException
from replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import LEADER_ROLE, Replica
from replication.storage.cluster import Cluster
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable
from schemas import LOG


class Leadership(NamedTuple):
    """A partition as the metadata has it, and what the broker that is to lead it says of it, if that can be read."""

    registration: PartitionRegistration
    row: Replica | None = None
    error: LakelogException | None = None

    @property
    def leader_row(self) -> Replica | None:
        """The row, once the broker has taken up the role under the epoch that the metadata has."""
        row = self.row
        leads = row is not None and row.role == LEADER_ROLE and row.leader_epoch == self.registration.leader_epoch
        return row if leads else None

    @property
    def unavailable(self) -> LakelogException | None:
        """Why nobody can be asked for the partition now; None if its leader can."""
        registration = self.registration
        if self.error or self.leader_row:
            return self.error
        why = f"broker {registration.leader} has not taken up its role under leader epoch {registration.leader_epoch}"
        if registration.leader == NO_LEADER:
            why = f"no leader; replicas are {registration.replicas}"
        return LeaderNotAvailableException(f"{registration.topic}-{registration.partition}: {why}")


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
        partitions = {
            r.partition: r
            for r in registrations
            if found and not found.deleting and r.topic_id == found.topic_id and r.leader != LEADER_DURING_DELETE
        }
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

    def leaderships(self, topic: str, partitions: Iterable[int]) -> dict[int, Leadership]:
        """What metadata and leaders say now of those of the partitions that there are; each table is read once.

        A leader whose table cannot be read is an error of its partitions. Raises UnknownTopicOrPartitionException.
        """
        found = self.partitions(topic)
        chosen = {number: found[number] for number in partitions if number in found}
        rows: dict[int, Mapping[TopicIdPartition, Replica]] = {NO_LEADER: {}}
        errors: dict[int, LakelogException] = {}
        for leader in {registration.leader for registration in chosen.values()} - {NO_LEADER}:
            try:
                rows[leader] = self.replicas(leader)
            except LakelogException as error:
                rows[leader], errors[leader] = {}, error
        return {
            number: Leadership(r, rows[r.leader].get(r.topic_id_partition), errors.get(r.leader))
            for number, r in chosen.items()
        }


class TopicWatch:
    """What wakes those who wait for partitions of a topic: their metadata, or their leaders' rows, have moved.

    A row holds HW, LEO, log start, role and epoch, so these are all of Kafka's wakers. [DO-02]
    """

    def __init__(self, view: TopicView, topic: str, partitions: Iterable[int]) -> None:
        self._view = view
        self._topic = topic
        self._partitions = tuple(partitions)
        self.seen = view.leaderships(topic, self._partitions)

    def moved(self) -> set[int]:
        """Looks again, and tells which partitions have moved since the last look."""
        before, self.seen = self.seen, self._view.leaderships(self._topic, self._partitions)
        return {number for number in self._partitions if self.seen.get(number) != before.get(number)}


def pause(milliseconds: int, deadline: float) -> None:
    """Waits between two looks at a table, not beyond `deadline` of the monotonic clock."""
    left = deadline - time.monotonic()
    threading.Event().wait(max(0.0, min(milliseconds / 1000, left)))
