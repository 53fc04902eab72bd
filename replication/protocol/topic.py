"""A topic, as the cluster knows it; the rules for its name; and the entities that have settings. [TH-02]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import InvalidTopicException, UnknownTopicIdException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    PartitionRegistration,
    Registrations,
)

MAX_LENGTH = 249
INTERNAL_PREFIX = "__"
_LEGAL_SYMBOLS = "._-"
BROKER_TYPE = "brokers"  # the type of the entities that are brokers; Kafka: `ConfigType.BROKER`
DEFAULT_NAME = "<default>"  # Kafka: `ConfigEntityName.DEFAULT`


@dataclass(frozen=True)
class Topic:
    """A topic: its id, its number of partitions when it was made, and its settings under Kafka's keys."""

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False


def check_topic_id(registration: PartitionRegistration, topic_id: str) -> None:
    """An offset belongs to a topic id. A topic that is made again under the same name has other records at it.

    Kafka's clients learn this from UNKNOWN_TOPIC_ID and INCONSISTENT_TOPIC_ID, and look up the id of the name again.
    Here the metadata is the newest there is: an id that has gone never comes back, so the error is not retriable.

    Kafka: `FetchSession`, `Fetch` since version 13. KIP-516. [FE-02]

    Raises:
        UnknownTopicIdException: the partition is of a topic with another id.
    """
    if registration.topic_id != topic_id:
        raise UnknownTopicIdException(
            f"{registration.name}: the topic with id {topic_id} was deleted, and {registration.topic} was made again "
            f"with id {registration.topic_id}: offsets of the one say nothing about the other"
        )


def partitions_of(
    name: str, topics: Mapping[str, Topic], registrations: Registrations
) -> dict[int, PartitionRegistration]:
    """The partitions of a topic by number, without those that are being deleted.

    Raises:
        UnknownTopicOrPartitionException: no topic has this name, or it is being deleted.
    """
    topic = topics.get(name)
    found = {
        r.partition: r
        for r in registrations.values()
        if topic and not topic.deleting and r.topic_id == topic.topic_id and r.leader != LEADER_DURING_DELETE
    }
    if not found:
        known = (other for other, topic in topics.items() if not topic.deleting)
        raise UnknownTopicOrPartitionException(f"no topic {name}; there are: {', '.join(sorted(known)) or 'none'}")
    return dict(sorted(found.items()))


def check_topic_name(name: str) -> None:
    """A topic name has 1 to 249 ASCII letters, digits, `.`, `_` and `-`, and is not `.` or `..`.

    Kafka: `Topic.validate`. Names become parts of file names.

    Raises:
        InvalidTopicException: the text says what is wrong with the name.
    """
    check_is_text(name)
    problem = _problem(name)
    if problem:
        raise InvalidTopicException(f"topic name {name!r} {problem}")


def check_is_text(name: object) -> None:
    """A topic name must be a `str`.

    Raises:
        InvalidTopicException: it is of another type; the text names it.
    """
    if not isinstance(name, str):
        raise InvalidTopicException(f"topic name {name!r} is of type {type(name).__name__}, it must be text (str)")


def check_not_internal(name: str, who: str) -> None:
    """Clients must not make internal topics or write to them. Names that begin with `__` are reserved for these.

    Kafka: `Topic.isInternal`, which knows two such names; `ReplicaManager.appendToLocalLog` with
    internalTopicsAllowed = false. [AP-02, DR-01]

    Raises:
        InvalidTopicException: the topic is internal, and the text names `who`; or the name is not a `str`.
    """
    check_is_text(name)
    if name.startswith(INTERNAL_PREFIX):
        raise InvalidTopicException(
            f"topic {name} is internal, which is not for {who}: names that begin with {INTERNAL_PREFIX} are reserved"
        )


def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if name in (".", ".."):
        return "is a folder, not a name"
    if len(name) > MAX_LENGTH:
        return f"has {len(name)} characters: at most {MAX_LENGTH} are allowed"
    if not (name.isascii() and all(symbol.isalnum() or symbol in _LEGAL_SYMBOLS for symbol in name)):
        return "has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


class Entity(NamedTuple):
    """An entity with settings: its type and name. `<default>` is the name for all entities without settings of their
    own."""

    entity_type: str
    entity_name: str


Configs: TypeAlias = Mapping[Entity, Mapping[str, str]]
