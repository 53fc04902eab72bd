"""Topics, partitions and leaders: looked at in the tables, changed by requests to the controller.

Kafka: `Admin`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replication.clients.record_deletion import Deleted, delete_records
from replication.clients.topic_view import TopicView, pause
from replication.config import Config, TopicConfig
from replication.errors import LakelogException, TimeoutException, UnknownTopicOrPartitionException, error_named
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.reassignment import is_reassigning
from replication.storage.admin_table import AdminRequest, Outcome
from replication.storage.broker_table import BrokerRegistration
from replication.storage.cluster import Cluster
from replication.storage.controller_lease import Lease
from replication.storage.topic_table import Topic

Assignment = Mapping[int, Sequence[int]]
Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class TopicDescription:
    """A topic and its partitions, in order."""

    topic: Topic
    partitions: tuple[PartitionRegistration, ...]


class AdminClient:
    """Every change is a row in `admin`, which the active controller decides; with `validate_only` it only says how.

    A request waits `request.timeout.ms`; one that was not decided by then raises TimeoutException and stays: whichever
    controller comes will decide it. `requested_by` is a name for people.
    """

    def __init__(self, cluster_uri: str, config: Config | None = None, requested_by: str = "admin client") -> None:
        self._cluster = Cluster.open(cluster_uri, config)
        self._requested_by = requested_by

    def request(self, kind: str, arguments: Mapping[str, Any], *, validate_only: bool = False) -> AdminRequest:
        """Puts a request to the controller and waits until it is decided. Raises TimeoutException."""
        admin, config = self._cluster.admin, self._cluster.config
        self._cluster.metadata.refresh()
        request_id, version = uuid.uuid4().hex, self._cluster.metadata.version
        admin.add(AdminRequest(request_id, kind, arguments, validate_only, self._requested_by, version))
        deadline = time.monotonic() + config.request_timeout_ms / 1000
        while time.monotonic() < deadline:
            found = admin.request(request_id)
            if found is not None and found.outcomes is not None:
                return found
            pause(config.lakelog_poll_interval_ms, deadline)
            admin.refresh()
        raise TimeoutException(
            f"{kind}: no controller has decided request {request_id} within {config.request_timeout_ms} ms; "
            "it stays in the admin table, and the next controller will"
        )

    def _one(self, kind: str, arguments: Mapping[str, Any], validate_only: bool) -> str:
        """The message of a request that is of one thing. Raises what the controller has answered."""
        decided = self.request(kind, arguments, validate_only=validate_only)
        outcomes = list((decided.outcomes or {}).values())
        for outcome in outcomes:
            if outcome.error is not None:
                raise error_named(outcome.error, outcome.message)
        return outcomes[0].message if outcomes else ""

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        assignment: Assignment | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> TopicDescription:
        """Makes a topic, over the assignment given or one that spreads replicas over brokers and racks.

        Nothing is written unless all of it is right. Raises InvalidTopicException, TopicExistsException,
        InvalidPartitionsException, InvalidReplicationFactorException, InvalidReplicaAssignmentException or
        InvalidConfigurationException. [LI-02]
        """
        self._one("create_topic", _creation(topic, partitions, replication_factor, assignment, configs), False)
        return self.describe_topic(topic)

    def validate_topic(
        self,
        topic: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        assignment: Assignment | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> str:
        """What `create_topic` would make, in words; raises what it would raise."""
        return self._one("create_topic", _creation(topic, partitions, replication_factor, assignment, configs), True)

    def delete_topic(self, topic: str, *, validate_only: bool = False) -> str:
        """Queues a topic for deletion; its name is free once `list_topics` has it no more. [TD-01]

        Raises UnknownTopicOrPartitionException, TopicDeletionDisabledException.
        """
        return self._one("delete_topic", {"topic": topic}, validate_only)

    def create_partitions(
        self, topic: str, total: int, assignment: Assignment | None = None, *, validate_only: bool = False
    ) -> str:
        """Adds partitions up to `total`; `assignment` is of the new ones. [LI-07]

        Raises UnknownTopicOrPartitionException, InvalidPartitionsException, InvalidReplicaAssignmentException.
        """
        arguments = {"topic": topic, "total": total, "assignment": _json(assignment)}
        return self._one("create_partitions", arguments, validate_only)

    def alter_configs(
        self, topic: str, put: Mapping[str, object], delete: Collection[str] = (), *, validate_only: bool = False
    ) -> str:
        """Sets and removes settings of a topic.

        Raises UnknownTopicOrPartitionException, InvalidConfigurationException.
        """
        arguments = {"topic": topic, "put": dict(put), "delete": list(delete)}
        return self._one("alter_configs", arguments, validate_only)

    def alter_broker_configs(
        self, broker: int | str, put: Mapping[str, object], delete: Collection[str] = (), *, validate_only: bool = False
    ) -> str:
        """Sets and removes settings of a broker that runs, or of all brokers: `<default>`.

        Raises BrokerNotAvailableException, InvalidRequestException, InvalidConfigurationException. [TH-02]
        """
        arguments = {"broker": str(broker), "put": dict(put), "delete": list(delete)}
        return self._one("alter_broker_configs", arguments, validate_only)

    def describe_broker_configs(self) -> dict[str, dict[str, str]]:
        """The settings of each broker that has any, and of `<default>`; not those of their properties files."""
        self._cluster.configs.refresh()
        found = self._cluster.configs.configs
        return {entity.entity_name: dict(configs) for entity, configs in found.items()}

    def alter_partition_reassignments(
        self, reassignments: Mapping[tuple[str, int], Sequence[int] | None], *, validate_only: bool = False
    ) -> Outcomes:
        """Moves partitions to other brokers, None cancels; what has become of each, by topic and partition. [RA-01]"""
        wanted = {f"{topic}-{partition}": brokers for (topic, partition), brokers in reassignments.items()}
        decided = self.request("alter_partition_reassignments", {"reassignments": wanted}, validate_only=validate_only)
        return decided.outcomes or {}

    def elect_leaders(
        self, election_type: str, partitions: Collection[tuple[str, int]] | None = None, *, validate_only: bool = False
    ) -> Outcomes:
        """Elects leaders, `preferred` or `unclean`, of these partitions or all; what has become of each. [PE-01]"""
        chosen = None if partitions is None else [f"{topic}-{partition}" for topic, partition in partitions]
        arguments = {"election_type": election_type, "partitions": chosen}
        return self.request("elect_leaders", arguments, validate_only=validate_only).outcomes or {}

    def list_topics(self) -> list[str]:
        """Names of all topics, sorted; those that are being deleted among them."""
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
        return self._description(found)

    def describe_topics(self) -> list[TopicDescription]:
        """Every topic and its partitions, sorted; those that are being deleted among them."""
        self._cluster.topics.refresh()
        self._cluster.metadata.refresh()
        return [self._description(topic) for _, topic in sorted(self._cluster.topics.topics.items())]

    def _description(self, topic: Topic) -> TopicDescription:
        partitions = [r for r in self._cluster.metadata.partitions.values() if r.topic_id == topic.topic_id]
        return TopicDescription(topic, tuple(sorted(partitions, key=lambda r: r.partition)))

    def settings_of(self, topic: Topic) -> TopicConfig:
        """The settings of a topic: its own over those that this client was given."""
        return self._cluster.config.topic(topic.configs)

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Deleted]:
        """Deletes the records of partitions below an offset, -1 for all that are committed; see `record_deletion`.

        Answers each partition's low watermark, or its error. It asks leaders, so that no controller is needed. [DR-01]
        """
        outcomes: dict[tuple[str, int], Deleted] = {}
        for topic in sorted({name for name, _ in before}):
            offsets = {number: offset for (name, number), offset in before.items() if name == topic}
            timeout = self._cluster.config.request_timeout_ms
            try:
                found: Mapping[int, Deleted] = delete_records(TopicView(self._cluster), topic, offsets, timeout)
            except LakelogException as error:
                found = dict.fromkeys(offsets, error)
            outcomes.update({(topic, number): outcome for number, outcome in found.items()})
        return outcomes

    def list_partition_reassignments(self) -> list[PartitionRegistration]:
        """The partitions that are being moved."""
        self._cluster.metadata.refresh()
        moving = [r for r in self._cluster.metadata.partitions.values() if is_reassigning(r)]
        return sorted(moving, key=lambda r: (r.topic, r.partition))

    def describe_brokers(self) -> Mapping[int, BrokerRegistration]:
        """Every broker that has registered, by id."""
        return self._cluster.refresh_brokers()

    def list_requests(self) -> list[AdminRequest]:
        """The requests that are kept, oldest first, with what has become of them."""
        self._cluster.admin.refresh()
        return self._cluster.admin.requests

    def describe_controller(self) -> Lease | None:
        """Who controls the cluster, by its lease; None if nobody ever did."""
        return self._cluster.lease.read()


def _creation(
    topic: str, partitions: int | None, replication_factor: int | None, assignment: Assignment | None,
    configs: Mapping[str, object] | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "topic": topic, "partitions": partitions, "replication_factor": replication_factor,
        "assignment": _json(assignment), "configs": dict(configs or {}),
    }  # fmt: skip


def _json(assignment: Assignment | None) -> dict[str, list[int]] | None:
    """JSON has texts for keys."""
    return None if assignment is None else {str(number): list(replicas) for number, replicas in assignment.items()}
