"""Topics, partitions and leaders: looked at in the tables, changed by requests to the controller.

Kafka: `Admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakelog.replication.clients.controller_channel import ControllerChannel
from lakelog.replication.clients.controller_watch import Report
from lakelog.replication.clients.record_deletion import Deleted, delete_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config, TopicConfig
from lakelog.replication.errors import LakelogException, UnknownTopicOrPartitionException, error_named
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.lease import Lease
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster

Assignment = Mapping[int, Sequence[int]]
Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class TopicDescription:
    """A topic and its partitions, in order."""

    topic: Topic
    partitions: tuple[PartitionRegistration, ...]


class AdminClient:
    """Every change is a row in `admin`, which the active controller decides; with `validate_only` it only says how.

    A request waits `request.timeout.ms`; one that no controller has decided by then is withdrawn and raises
    TimeoutException. Every change may raise InvalidRequestException for arguments of a wrong type, and
    PolicyViolationException for too many partitions. `requested_by` is a name for people. `report` gets a sentence at
    once if no controller is active, and one that says what holds of a request that is interrupted.
    """

    def __init__(
        self, cluster_uri: str, config: Config | None = None, requested_by: str = "admin client",
        report: Report | None = None,
    ) -> None:  # fmt: skip
        self._cluster = Cluster.open(cluster_uri, config)
        self._channel = ControllerChannel(self._cluster, requested_by, report)

    def request(self, kind: str, arguments: Mapping[str, Any], *, validate_only: bool = False) -> AdminRequest:
        """Puts a request to the controller and waits until it is decided. Raises TimeoutException."""
        return self._channel.ask(kind, arguments, validate_only=validate_only)

    def cancel_request(self, request_id: str) -> AdminRequest:
        """Cancels a request that waits, or is being decided. Raises InvalidRequestException if it is neither."""
        return self._channel.cancel(request_id)

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
        wanted = {
            f"{topic}-{partition}": None if brokers is None else _brokers(brokers)
            for (topic, partition), brokers in reassignments.items()
        }
        decided = self.request("alter_partition_reassignments", {"reassignments": wanted}, validate_only=validate_only)
        return decided.outcomes or {}

    def elect_leaders(
        self, election_type: str, partitions: Collection[tuple[str, int]] | None = None, *, validate_only: bool = False
    ) -> Outcomes:
        """Elects leaders, `preferred` or `unclean`, of these partitions or all; what has become of each. [PE-01]

        Of all partitions those are left out that need no election, as in Kafka.
        """
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
        "assignment": _json(assignment), "configs": {} if configs is None else configs,
    }  # fmt: skip


def _json(assignment: Assignment | None) -> dict[str, Any] | None:
    """JSON has texts for keys."""
    if assignment is None:
        return None
    return {str(number): _brokers(replicas) for number, replicas in assignment.items()}


def _brokers(replicas: Sequence[int]) -> Any:
    """A list of a sequence. A text is one too, but of no brokers: what is no list is left for the check to refuse."""
    return list(replicas) if isinstance(replicas, list | tuple | range) else replicas
