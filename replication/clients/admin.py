"""Creates, changes and describes topics, partitions, settings and leaders.

Descriptions are read from the cluster's tables. Changes are requests to the controller. Kafka: `Admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakelog.replication.clients.arguments import flag, function, mapping, text, topic_partitions
from lakelog.replication.clients.controller_channel import ControllerChannel, Report
from lakelog.replication.clients.one_process import OneProcess
from lakelog.replication.clients.record_deletion import Deleted, delete_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config, TopicConfig
from lakelog.replication.errors import (
    InvalidRequestException,
    LakelogException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
    error_named,
)
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.assignment import cordoned_brokers
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.topic import BROKER_TYPE, Topic, check_is_text
from lakelog.replication.storage.cluster import Cluster

Assignment = Mapping[int, Sequence[int]]
Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class TopicDescription:
    """A topic and its partitions, in the order of their numbers. Kafka: `TopicDescription`."""

    topic: Topic
    partitions: tuple[PartitionRegistration, ...]


class AdminClient(OneProcess):
    """Kafka's `Admin`, without Spark: `AdminClient("/lake/cluster").create_topic("orders", partitions=6)`.

    A change is a row in the `admin` table. The call returns when the active controller has decided it. With
    `validate_only` the controller only answers what it would do; if none is active, the call raises
    ControllerNotAvailableException. After `request.timeout.ms` the client withdraws the request and raises
    TimeoutException. Every change may also raise InvalidRequestException (an argument of a wrong type),
    PolicyViolationException (too many partitions), RequestCancelledException and KafkaStorageException. `requested_by`
    names the client in the `admin` table. `report` is called with a sentence if no controller is active, and if a
    waiting request is interrupted.
    """

    def __init__(
        self, cluster_uri: str, config: Config | None = None, requested_by: str = "admin client",
        report: Report | None = None,
    ) -> None:  # fmt: skip
        text(requested_by, "requested_by")
        function(report, "report")
        self._cluster = Cluster.open(cluster_uri, config)
        self._channel = ControllerChannel(self._cluster, requested_by, report)

    def __repr__(self) -> str:
        return f"<AdminClient of {self._cluster.root.uri}>"

    def request(self, kind: str, arguments: Mapping[str, Any], *, validate_only: bool = False) -> AdminRequest:
        """Sends a request and returns it with its outcomes. `kind` is the name of a method of this class."""
        return self._channel.ask(kind, arguments, validate_only=flag(validate_only, "validate_only"))

    def cancel_request(self, request_id: str) -> AdminRequest:
        """Cancels a request that is not being applied yet. Raises InvalidRequestException if it is, or is decided."""
        return self._channel.cancel(text(request_id, "request_id"))

    def _one(self, kind: str, arguments: Mapping[str, Any], validate_only: bool) -> str:
        """The message of a request with one outcome. Raises the error that the controller answered."""
        decided = self.request(kind, arguments, validate_only=validate_only)
        outcomes = list((decided.outcomes or {}).values())
        for outcome in outcomes:
            if outcome.error is not None:
                raise error_named(outcome.error, outcome.message)
        return outcomes[0].message if outcomes else ""

    def create_topic(
        self, topic: str, partitions: int | None = None, replication_factor: int | None = None,
        assignment: Assignment | None = None, configs: Mapping[str, object] | None = None, *,
        if_not_exists: bool = False,
    ) -> TopicDescription:  # fmt: skip
        """Creates a topic and returns its description. A request with any error creates nothing. [LI-02]

        `partitions` and `replication_factor` default to the controller's `num.partitions` and
        `default.replication.factor`; the replicas are spread over brokers and racks. Instead of both, `assignment`
        gives the brokers of each partition, the preferred leader first: `{0: [1, 2, 3]}`. `configs`:
        `{"retention.ms": -1}`. Raises InvalidTopicException, TopicExistsException, InvalidPartitionsException,
        InvalidReplicationFactorException, InvalidReplicaAssignmentException or InvalidConfigurationException.

        `if_not_exists`: returns the description of a topic that exists, as it is, whatever was asked for. One that is
        still being deleted raises TopicExistsException nevertheless.
        """
        flag(if_not_exists, "if_not_exists")
        try:
            self._one("create_topic", _creation(topic, partitions, replication_factor, assignment, configs), False)
        except TopicExistsException:
            if not if_not_exists or self.describe_topic(topic).topic.deleting:
                raise
        return self.describe_topic(topic)

    def validate_topic(
        self, topic: str, partitions: int | None = None, replication_factor: int | None = None,
        assignment: Assignment | None = None, configs: Mapping[str, object] | None = None,
    ) -> str:  # fmt: skip
        """Checks what `create_topic` would do. Returns the assignment as text, or raises the same errors."""
        return self._one("create_topic", _creation(topic, partitions, replication_factor, assignment, configs), True)

    def delete_topic(self, topic: str, *, validate_only: bool = False) -> str:
        """Marks a topic for deletion. The name is free again when `list_topics` no longer has it. [TD-01]

        Raises UnknownTopicOrPartitionException, TopicDeletionDisabledException.
        """
        return self._one("delete_topic", {"topic": topic}, validate_only)

    def create_partitions(
        self, topic: str, total: int, assignment: Assignment | None = None, *, validate_only: bool = False
    ) -> str:
        """Raises the number of partitions to `total`; `assignment` has the brokers of the new ones only. [LI-07]

        Raises UnknownTopicOrPartitionException, InvalidPartitionsException, InvalidReplicaAssignmentException.
        """
        arguments = {"topic": topic, "total": total, "assignment": _json(assignment)}
        return self._one("create_partitions", arguments, validate_only)

    def alter_configs(
        self, topic: str, put: Mapping[str, object], delete: Collection[str] = (), *, validate_only: bool = False
    ) -> str:
        """Sets (`put`) and removes (`delete`) settings of a topic. Returns its settings afterwards, as text.

        Kafka: `incrementalAlterConfigs`. Raises UnknownTopicOrPartitionException, InvalidConfigurationException.
        """
        arguments = {"topic": topic, "put": _dict(put), "delete": _list(delete)}
        return self._one("alter_configs", arguments, validate_only)

    def alter_broker_configs(
        self, broker: int | str, put: Mapping[str, object], delete: Collection[str] = (), *, validate_only: bool = False
    ) -> str:
        """Sets and removes dynamic settings of a broker, or of `<default>`: all brokers without a value of their own.

        Raises BrokerNotAvailableException (no such broker), InvalidRequestException (no broker id, or a setting that
        needs a restart), InvalidConfigurationException. [TH-02]
        """
        name = str(broker) if isinstance(broker, int) and not isinstance(broker, bool) else broker
        arguments = {"broker": name, "put": _dict(put), "delete": _list(delete)}
        return self._one("alter_broker_configs", arguments, validate_only)

    def describe_broker_configs(self) -> dict[str, dict[str, str]]:
        """The dynamic settings by broker id (as text) or `<default>`, without those of the properties files."""
        self._cluster.configs.refresh()
        found = self._cluster.configs.configs
        return {name: dict(configs) for (kind, name), configs in found.items() if kind == BROKER_TYPE}

    def cordoned_brokers(self) -> frozenset[int]:
        """The registered brokers that get no new replica: `cordoned.log.dirs` of a broker, or of all, is `*`. KIP-1066.
        [TM-02]"""
        self._cluster.configs.refresh()
        return cordoned_brokers(self._cluster.configs.configs, self._cluster.refresh_brokers())

    def alter_partition_reassignments(
        self, reassignments: Mapping[tuple[str, int], Sequence[int] | None], *, validate_only: bool = False
    ) -> Outcomes:
        """Moves partitions: `{("orders", 0): [2, 3, 1]}`; None cancels a move. [RA-01]

        Returns the outcome of each partition by name, `orders-0`. Success means that the move has begun: it is over
        when `list_partition_reassignments` no longer has it.
        """
        topic_partitions(mapping(reassignments, "reassignments", '{("orders", 0): [2, 3, 1]}'), "reassignments")
        wanted = {
            f"{topic}-{partition}": None if brokers is None else _brokers(brokers)
            for (topic, partition), brokers in reassignments.items()
        }
        decided = self.request("alter_partition_reassignments", {"reassignments": wanted}, validate_only=validate_only)
        return decided.outcomes or {}

    def elect_leaders(
        self, election_type: str, partitions: Collection[tuple[str, int]] | None = None, *, validate_only: bool = False
    ) -> Outcomes:
        """Elects leaders, `preferred` or `unclean`, of these (topic, partition) pairs or of all partitions. [PE-01]

        Returns the outcome of each by name, `orders-0`. Without `partitions`, it leaves out those that need no
        election, as Kafka does.
        """
        pairs = None if partitions is None else topic_partitions(partitions)
        chosen = None if pairs is None else [f"{topic}-{partition}" for topic, partition in pairs]
        arguments = {"election_type": election_type, "partitions": chosen}
        return self.request("elect_leaders", arguments, validate_only=validate_only).outcomes or {}

    def list_topics(self) -> list[str]:
        """The names of all topics, sorted, with those that are being deleted."""
        self._cluster.topics.refresh()
        return sorted(self._cluster.topics.topics)

    def describe_topic(self, topic: str) -> TopicDescription:
        """A topic and the current state of its partitions. Raises UnknownTopicOrPartitionException."""
        check_is_text(topic)
        self._cluster.topics.refresh()
        self._cluster.metadata.refresh()
        found = self._cluster.topics.topics.get(topic)
        if found is None:
            known = ", ".join(sorted(self._cluster.topics.topics)) or "none"
            raise UnknownTopicOrPartitionException(f"no topic {topic}; there are: {known}")
        return self._description(found)

    def describe_topics(self) -> list[TopicDescription]:
        """All topics, sorted by name, with those that are being deleted."""
        self._cluster.topics.refresh()
        self._cluster.metadata.refresh()
        return [self._description(topic) for _, topic in sorted(self._cluster.topics.topics.items())]

    def _description(self, topic: Topic) -> TopicDescription:
        partitions = [r for r in self._cluster.metadata.partitions.values() if r.topic_id == topic.topic_id]
        return TopicDescription(topic, tuple(sorted(partitions, key=lambda r: r.partition)))

    def settings_of(self, topic: Topic) -> TopicConfig:
        """The settings of a topic. A setting that the topic does not have is that of this client."""
        if not isinstance(topic, Topic):
            raise InvalidRequestException(f"topic is {topic!r:.80}: give the `topic` of a description")
        return self._cluster.config.topic(topic.configs)

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Deleted]:
        """Deletes the records of each (topic, partition) below an offset; -1 deletes all committed records. [DR-01]

        Returns each low watermark, or error: see `record_deletion.delete_records`. It needs no controller.
        """
        outcomes: dict[tuple[str, int], Deleted] = {}
        topic_partitions(mapping(before, "before", '{("orders", 0): 100}'), "before")
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
        """The partitions with a move under way, by topic and number."""
        self._cluster.metadata.refresh()
        moving = [r for r in self._cluster.metadata.partitions.values() if is_reassigning(r)]
        return sorted(moving, key=lambda r: (r.topic, r.partition))

    def describe_brokers(self) -> Mapping[int, BrokerRegistration]:
        """Every registered broker by id, dead ones too."""
        return self._cluster.refresh_brokers()

    def unregister_broker(self, broker: int, *, validate_only: bool = False) -> str:
        """Removes the registration and the settings of a broker that is stopped for good. Returns the result as text.
        If it starts again, it registers anew. [BC-01]

        Raises BrokerNotAvailableException (no such broker), InvalidRequestException (it is alive, or has replicas).
        """
        return self._one("unregister_broker", {"broker": broker}, validate_only)

    def list_requests(self) -> list[AdminRequest]:
        """The waiting requests and the last decided ones (`lakelog.admin.requests.kept`), oldest first."""
        self._cluster.admin.refresh()
        return self._cluster.admin.requests

    def describe_controller(self) -> Lease | None:
        """The lease of the last active controller; None if there never was one. The lease may have expired."""
        return self._cluster.lease.read()


def _creation(
    topic: str, partitions: int | None, replication_factor: int | None, assignment: Assignment | None,
    configs: Mapping[str, object] | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "topic": topic, "partitions": partitions, "replication_factor": replication_factor,
        "assignment": _json(assignment), "configs": {} if configs is None else _dict(configs),
    }  # fmt: skip


def _json(assignment: Assignment | None) -> dict[str, Any] | None:
    """The keys of a JSON object are strings."""
    if not isinstance(assignment, Mapping):
        return assignment
    return {str(number): _brokers(replicas) for number, replicas in assignment.items()}


# A value of another type is passed on, so that `check_arguments` refuses it.


def _brokers(replicas: Sequence[int]) -> Any:
    return list(replicas) if isinstance(replicas, list | tuple | range) else replicas


def _dict(settings: Mapping[str, object]) -> Any:
    return dict(settings) if isinstance(settings, Mapping) else settings


def _list(names: Collection[str]) -> Any:
    is_list = isinstance(names, Collection) and not isinstance(names, str | bytes | bytearray | memoryview | Mapping)
    return list(names) if is_list else names
