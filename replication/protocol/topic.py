"""A topic, as the cluster knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakelog.replication.errors import UnknownTopicIdException, UnknownTopicOrPartitionException
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    PartitionRegistration,
    Registrations,
)


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
