"""Topics: made, listed, described. Kafka: `AdminClient`, `AdminManager`, `TopicCommand`."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replication.config import Config, topic_configs
from replication.errors import (
    InvalidPartitionsException,
    InvalidReplicationFactorException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from replication.protocol.assignment import assign_replicas, check_assignment
from replication.protocol.leader_election import new_partition
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.topic_name import check_not_internal, check_topic_name
from replication.storage.broker_table import BrokerRegistration
from replication.storage.cluster import Cluster
from replication.storage.topic_table import Topic

Assignment = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class TopicDescription:
    """A topic and its partitions, in order."""

    topic: Topic
    partitions: tuple[PartitionRegistration, ...]


class AdminClient:
    """Reads and changes the topics of a cluster. Needs no broker: the tables are the protocol."""

    def __init__(self, cluster_uri: str, config: Config | None = None) -> None:
        self._cluster = Cluster.open(cluster_uri, config)

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        assignment: Assignment | None = None,
        configs: Mapping[str, object] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Makes a topic, over the assignment given or one that spreads replicas over brokers and racks.

        The topic's row is committed before its partitions: a name belongs to whoever was first. Partitions begin as
        LE-03 says. Nothing is written unless all of it is right, or with `validate_only`: raises InvalidTopicException,
        TopicExistsException, InvalidPartitionsException, InvalidReplicationFactorException,
        InvalidReplicaAssignmentException or InvalidConfigurationException.
        """
        check_topic_name(topic)
        check_not_internal(topic, "an admin client")
        settings = topic_configs(configs or {}, f"topic {topic}")
        brokers = {i: b for i, b in self._cluster.refresh_brokers().items() if not b.shutting_down}
        self._cluster.topics.refresh()
        self._cluster.metadata.refresh()
        unfinished = self._unfinished(topic)
        chosen = self._assignment(brokers, partitions, replication_factor, assignment)
        if unfinished and unfinished.partitions != len(chosen):
            raise TopicExistsException(f"topic {topic} exists already, with {unfinished.partitions} partitions")
        row = unfinished or Topic(topic, uuid.uuid4().hex, len(chosen), settings)
        registrations = [
            new_partition(topic, row.topic_id, partition, tuple(replicas), set(brokers))
            for partition, replicas in sorted(chosen.items())
        ]
        if not validate_only:
            self._cluster.topics.add(row)
            cause = {"who": "admin", "why": "create topic", "topic": topic}
            if not self._cluster.metadata.add(registrations, cause):
                raise TopicExistsException(f"topic {topic} exists already: another client has made it in between")
        return TopicDescription(row, tuple(registrations))

    def _unfinished(self, topic: str) -> Topic | None:
        """The topic's row where whoever made it has died before its partitions were written: it is finished now.

        Raises TopicExistsException if the topic is whole.
        """
        found = self._cluster.topics.topics.get(topic)
        if found is None:
            return None
        if any(r.topic_id == found.topic_id for r in self._cluster.metadata.partitions.values()):
            raise TopicExistsException(f"topic {topic} exists already")
        return found

    def _assignment(
        self, brokers: Mapping[int, BrokerRegistration], partitions: int | None, replication_factor: int | None,
        assignment: Assignment | None,
    ) -> Assignment:  # fmt: skip
        if assignment is not None:
            if partitions is not None or replication_factor is not None:
                raise InvalidPartitionsException("an assignment says it all: give no partitions or replication factor")
            check_assignment(assignment, set(brokers))
            return assignment
        config = self._cluster.config
        count = config.num_partitions if partitions is None else partitions
        factor = config.default_replication_factor if replication_factor is None else replication_factor
        if count < 1:
            raise InvalidPartitionsException(f"number of partitions is {count}, it must be 1 or more")
        if not 1 <= factor <= len(brokers):
            raise InvalidReplicationFactorException(
                f"replication factor is {factor}, it must be 1 or more, and there are {len(brokers)} brokers"
            )
        racks = {broker_id: registration.rack for broker_id, registration in brokers.items()}
        start, shift = secrets.randbelow(len(brokers)), secrets.randbelow(len(brokers))
        return assign_replicas(racks, count, factor, start, shift)

    def list_topics(self) -> list[str]:
        """Names of all topics, sorted."""
        self._cluster.topics.refresh()
        return sorted(self._cluster.topics.topics)

    def describe_topic(self, topic: str) -> TopicDescription:
        """A topic and the state of its partitions. Raises UnknownTopicOrPartitionException."""
        self._cluster.topics.refresh()
        self._cluster.metadata.refresh()
        found = self._cluster.topics.topics.get(topic)
        if found is None:
            known = ", ".join(sorted(self._cluster.topics.topics)) or "none"
            raise UnknownTopicOrPartitionException(f"no topic {topic}; there are: {known}")
        partitions = [r for r in self._cluster.metadata.partitions.values() if r.topic_id == found.topic_id]
        return TopicDescription(found, tuple(sorted(partitions, key=lambda r: r.partition)))
