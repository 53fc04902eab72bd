"""Creates topics, adds partitions, and changes settings of topics and brokers.

Kafka: `AdminManager`, `KafkaController.onNewPartitionCreation`. [LI-02, LI-07]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from lakelog.replication.config import DYNAMIC_KEYS, KEYS, TOPIC_KEYS, broker_configs, topic_configs
from lakelog.replication.controller import partition_state_machine, replica_state_machine
from lakelog.replication.controller.controller_context import PartitionAndReplica
from lakelog.replication.controller.decision import Decision
from lakelog.replication.errors import (
    BrokerNotAvailableException,
    InvalidConfigurationException,
    InvalidPartitionsException,
    InvalidRequestException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.admin_request import PartitionLimits, check_request_size, check_topic_size
from lakelog.replication.protocol.assignment import (
    assign_replicas,
    check_assignment,
    check_not_cordoned,
    check_replicas,
)
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.partition_states import PartitionState
from lakelog.replication.protocol.reassignment import target_replicas
from lakelog.replication.protocol.replica_states import ReplicaState
from lakelog.replication.protocol.topic import (
    BROKER_TYPE,
    DEFAULT_NAME,
    Entity,
    Topic,
    check_not_internal,
    check_topic_name,
)
from lakelog.replication.protocol.value_schema import check_schema_change, shown, with_history

Assignment = Mapping[int, Sequence[int]]

_SHOWN = 20  # the most partitions or topics in one answer
_DIGITS = 10  # the most in a broker id


def create_topic(
    decision: Decision, topic_id: str, topic: str, partitions: int | None = None, replication_factor: int | None = None,
    assignment: Assignment | None = None, configs: Mapping[str, object] | None = None,
) -> str:  # fmt: skip
    """Creates a topic with the given assignment, or else spreads its replicas over live brokers and racks. Returns the
    assignment as text. Brokers of a given assignment may be dead: the first live one leads.

    Raises InvalidTopicException, TopicExistsException, InvalidPartitionsException, InvalidReplicationFactorException,
    InvalidReplicaAssignmentException, InvalidConfigurationException, and PolicyViolationException for more partitions
    than `lakelog.max.partitions.per.topic`. [LI-02, LE-03]
    """
    check_topic_name(topic)
    check_not_internal(topic, "an admin client")
    settings = topic_configs(configs or {}, f"topic {topic}")
    check_schema_change(topic, {}, settings)
    settings = with_history(topic, {}, settings, settings)
    found = decision.topic(topic)
    if found is not None and found.topic_id != topic_id:
        raise TopicExistsException(f"topic {topic} " + ("is being deleted" if found.deleting else "exists already"))
    if assignment is None:
        config = decision.context.config
        count = config.num_partitions if partitions is None else partitions
        check_topic_size(topic, count, PartitionLimits.of(config))
        factor = config.default_replication_factor if replication_factor is None else replication_factor
        assignment = _spread(decision, count, factor, topic_id)
    elif partitions is not None or replication_factor is not None:
        raise InvalidPartitionsException("give an assignment, or partitions and replication factor, but not both")
    else:
        check_assignment(assignment, decision.context.known_brokers)
        for number, replicas in assignment.items():
            check_not_cordoned(number, replicas, decision.cordoned)
    decision.topics[topic] = Topic(topic, topic_id, len(assignment), settings)
    _on_new_partition_creation(decision, topic, topic_id, assignment)
    return _in_words(assignment)


def _in_words(assignment: Assignment) -> str:
    """The brokers of the first partitions, and the number of further partitions: an answer must stay short."""
    shown = sorted(assignment.items())[:_SHOWN]
    texts = [f"partition {number} on brokers {','.join(map(str, brokers))}" for number, brokers in shown]
    more = [f"and {len(assignment) - len(shown)} more"] if len(assignment) > len(shown) else []
    return "; ".join(texts + more)


def _spread(decision: Decision, partitions: int, replication_factor: int, salt: str, first: int = 0) -> Assignment:
    """An assignment for the partitions from `first` on. An equal `salt` gives an equal one, if a request is decided
    again."""
    brokers = {broker: decision.context.brokers[broker].rack for broker in sorted(decision.context.live_brokers)}
    drawn = Random(salt)
    start, shift = drawn.randrange(max(1, len(brokers))), drawn.randrange(max(1, len(brokers)))
    chosen = assign_replicas(brokers, first + partitions, replication_factor, start, shift, decision.cordoned)
    return {number: replicas for number, replicas in chosen.items() if number >= first}


def _on_new_partition_creation(decision: Decision, topic: str, topic_id: str, assignment: Assignment) -> None:
    """Moves new partitions and replicas to New, then to Online. A partition without a live replica stays New.

    Kafka: `KafkaController.onNewPartitionCreation`. [LI-02]
    """
    new = [
        PartitionRegistration(topic, topic_id, number, tuple(replicas), NO_LEADER, 0, ())
        for number, replicas in sorted(assignment.items())
    ]
    for registration in new:
        decision.put(registration)
    partitions = [registration.topic_id_partition for registration in new]
    replicas = [PartitionAndReplica(r.topic_id_partition, broker) for r in new for broker in r.replicas]
    partition_state_machine.handle_state_changes(decision, partitions, PartitionState.NEW)
    replica_state_machine.handle_state_changes(decision, replicas, ReplicaState.NEW)
    partition_state_machine.handle_state_changes(decision, partitions, PartitionState.ONLINE)
    alive = [replica for replica in replicas if replica.broker_id in decision.live]
    replica_state_machine.handle_state_changes(decision, alive, ReplicaState.ONLINE)
    for partition in decision.context.partitions.keys() & partitions:
        # An earlier attempt has written it, and its reply was lost. Its leader may have changed the ISR since.
        decision.keep(partition)


def topic_in_use(decision: Decision, name: str) -> Topic:
    """The topic. Raises UnknownTopicOrPartitionException if there is none or it is being deleted. [TD-05]"""
    topic = topic_of(decision, name)
    if topic.deleting:
        raise UnknownTopicOrPartitionException(f"topic {name} is being deleted")
    return topic


def topic_of(decision: Decision, name: str) -> Topic:
    """The topic, even if it is being deleted. Raises UnknownTopicOrPartitionException if there is none."""
    topic = decision.topic(name)
    if topic is None:
        others = ", ".join(sorted(decision.context.topics)[:_SHOWN]) or "none"
        raise UnknownTopicOrPartitionException(f"no topic {name}; there are: {others}")
    return topic


def create_partitions(
    decision: Decision, request_id: str, topic: str, total: int, assignment: Assignment | None = None
) -> str:
    """Adds partitions until the topic has `total`. Returns both numbers as text. [LI-07]

    `assignment` covers only the new partitions. Without it, they get as many replicas as the topic's first partition
    has, or will have after its reassignment.

    Raises UnknownTopicOrPartitionException, InvalidPartitionsException, InvalidReplicationFactorException,
    InvalidReplicaAssignmentException, and PolicyViolationException for more than `lakelog.max.partitions.per.request`.
    """
    found = topic_in_use(decision, topic)
    present = decision.partitions_of(found)
    count = min(found.partitions, len(present))  # one table is ahead after an unfinished attempt
    if total <= count:
        raise InvalidPartitionsException(f"topic {topic} has {count} partitions, it can only get more, not {total}")
    numbers = range(count, total)
    check_request_size("create_partitions", len(numbers), PartitionLimits.of(decision.context.config))
    if assignment is None:
        factor = len(target_replicas(present[0])) if present else decision.context.config.default_replication_factor
        assignment = _spread(decision, len(numbers), factor, request_id, count)
    elif sorted(assignment) != list(numbers):
        raise InvalidPartitionsException(
            f"topic {topic}: the assignment is of partitions {sorted(assignment)}, it must be of {list(numbers)}"
        )
    for number, replicas in assignment.items():
        check_replicas(number, replicas, decision.context.known_brokers)
        check_not_cordoned(number, replicas, decision.cordoned)
    decision.topics[topic] = replace(found, partitions=total)
    _on_new_partition_creation(decision, topic, found.topic_id, assignment)
    return f"{count} -> {total} partitions"


def alter_configs(decision: Decision, topic: str, put: Mapping[str, object], delete: Sequence[str]) -> str:
    """Sets and removes settings of a topic. Returns its settings as text. If they now allow unclean elections, elects
    leaders for its offline partitions.

    A setting that a newer version has put there can be removed. Raises UnknownTopicOrPartitionException, and
    InvalidConfigurationException for other unknown keys or invalid values.

    Kafka: `AdminManager.incrementalAlterConfigs`, the event TopicUncleanLeaderElectionEnable. [LE-02]
    """
    found = topic_in_use(decision, topic)
    unknown = sorted(set(delete) - TOPIC_KEYS.keys() - found.configs.keys())
    if unknown:
        raise InvalidConfigurationException(f"topic {topic}: unknown key {unknown[0]}; {', '.join(TOPIC_KEYS)} exist")
    kept = {key: value for key, value in found.configs.items() if key not in delete}
    texts = topic_configs(put, f"topic {topic}", kept)
    settings = {**kept, **texts}
    check_schema_change(topic, found.configs, settings)
    settings = with_history(topic, found.configs, settings, texts)
    decision.topics[topic] = replace(found, configs=settings)
    offline = [
        r.topic_id_partition
        for r in decision.partitions_of(found)
        if decision.partition_state(r.topic_id_partition) == PartitionState.OFFLINE
    ]
    partition_state_machine.handle_state_changes(decision, offline, PartitionState.ONLINE)
    return ", ".join(f"{key}={shown(key, value)}" for key, value in settings.items()) or "no settings"


def alter_broker_configs(decision: Decision, broker: str, put: Mapping[str, object], delete: Sequence[str]) -> str:
    """Sets and removes settings of a broker, or the defaults of all brokers. Returns the settings as text. Brokers read
    them by themselves.

    A setting that a newer version has put there can be removed. Raises InvalidRequestException if `broker` is no id or
    another setting cannot change while a broker runs, BrokerNotAvailableException for an unknown broker,
    InvalidConfigurationException for other unknown keys or invalid values.
    """
    entity = _broker_entity(decision, broker)
    name, there = f"broker {broker}", decision.configs_of(entity)
    named = put.keys() | (set(delete) - there.keys())
    fixed = sorted(named & KEYS.keys() - DYNAMIC_KEYS.keys())
    if fixed:
        raise InvalidRequestException(
            f"{name}: {fixed[0]} cannot change while a broker runs; these can: {', '.join(DYNAMIC_KEYS)}"
        )
    unknown = sorted(set(delete) - DYNAMIC_KEYS.keys() - there.keys())
    if unknown:
        raise InvalidConfigurationException(f"{name}: unknown key {unknown[0]}; {', '.join(DYNAMIC_KEYS)} exist")
    kept = {key: value for key, value in there.items() if key not in delete}
    decision.configs[entity] = {**kept, **broker_configs(put, name)}
    return ", ".join(f"{key}={value}" for key, value in decision.configs[entity].items()) or "no settings"


def _broker_entity(decision: Decision, broker: str) -> Entity:
    """The broker as an entity. It may be dead if it has registered, or has replicas or settings: it reads the new
    settings when it returns."""
    if broker == DEFAULT_NAME:
        return Entity(BROKER_TYPE, DEFAULT_NAME)
    if not (broker.isascii() and broker.isdigit() and len(broker) <= _DIGITS):
        raise InvalidRequestException(f"{broker[:80]!r} is no broker: it must be a broker id or {DEFAULT_NAME}")
    hosts = {broker_id for r in decision.context.partitions.values() for broker_id in r.replicas}
    known = decision.context.known_brokers | hosts
    entity = Entity(BROKER_TYPE, str(int(broker)))
    if int(broker) not in known and entity not in decision.context.configs:
        there = ", ".join(map(str, sorted(known))) or "none"
        raise BrokerNotAvailableException(f"no broker {broker}; there are: {there}")
    return entity
