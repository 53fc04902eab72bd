"""What `lakelog topics` does and prints. Kafka: `TopicCommand`."""

import argparse
from collections.abc import Iterable

from jobs.console import JSON, say, show
from replication.clients.admin import AdminClient, TopicDescription
from replication.errors import TopicExistsException
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration

TEXT = "text"


def assignment(text: str) -> dict[int, tuple[int, ...]]:
    """Kafka's syntax: a list of brokers for each partition, `1:2:3,2:3:1`."""
    try:
        lists = [tuple(int(broker) for broker in part.split(":")) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1:2:3,2:3:1") from None
    return dict(enumerate(lists))


def config_pair(text: str) -> tuple[str, str]:
    """`key=value`."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def _create(admin: AdminClient, args: argparse.Namespace) -> None:
    wanted = (args.topic, args.partitions, args.replication_factor, args.replica_assignment, dict(args.config or ()))
    try:
        if args.dry_run:
            say(f"Nothing was written. Would be made: {admin.validate_topic(*wanted)}")
            return
        made = admin.create_topic(*wanted)
    except TopicExistsException:
        if not args.if_not_exists:
            raise
        say(f"Topic {args.topic} exists already.")
        return
    say(f"Created topic {args.topic}.")
    _show([made], args.output)


def _list(admin: AdminClient, args: argparse.Namespace) -> None:
    names = admin.list_topics()
    if args.output == TEXT:
        print("".join(f"{name}\n" for name in names), end="")
    else:
        show([{"topic": name} for name in names], args.output)


def _describe(admin: AdminClient, args: argparse.Namespace) -> None:
    names = [args.topic] if args.topic else admin.list_topics()
    _show([admin.describe_topic(name) for name in names], args.output)


ACTIONS = {"create": _create, "list": _list, "describe": _describe}


def _show(topics: Iterable[TopicDescription], output: str) -> None:
    if output == TEXT:
        print("".join(f"{line}\n" for topic in topics for line in _lines(topic)), end="")
    elif output == JSON:
        show([_object(topic) for topic in topics], JSON)
    else:
        show([_row(r) for topic in topics for r in topic.partitions])


def _lines(described: TopicDescription) -> list[str]:
    """As kafka-topics.sh prints it: tabs between the fields."""
    topic = described.topic
    configs = ",".join(f"{key}={value}" for key, value in topic.configs.items())
    head = (
        f"Topic: {topic.topic}\tTopicId: {topic.topic_id}\tPartitionCount: {len(described.partitions)}\t"
        f"ReplicationFactor: {_replication_factor(described)}\tConfigs: {configs}"
    )
    return [head, *map(_partition_line, described.partitions)]


def _partition_line(registration: PartitionRegistration) -> str:
    leader = "none" if registration.leader == NO_LEADER else registration.leader
    replicas, isr = (",".join(map(str, brokers)) for brokers in (registration.replicas, registration.isr))
    return (
        f"\tTopic: {registration.topic}\tPartition: {registration.partition}\tLeader: {leader}\t"
        f"Replicas: {replicas}\tIsr: {isr}"
    )


def _replication_factor(described: TopicDescription) -> int:
    return len(described.partitions[0].replicas) if described.partitions else 0


def _object(described: TopicDescription) -> dict[str, object]:
    return {
        "topic": described.topic.topic,
        "topic_id": described.topic.topic_id,
        "configs": dict(described.topic.configs),
        "partitions": [_row(registration) for registration in described.partitions],
    }


def _row(registration: PartitionRegistration) -> dict[str, object]:
    return {
        "topic": registration.topic,
        "partition": registration.partition,
        "leader": None if registration.leader == NO_LEADER else registration.leader,
        "leader_epoch": registration.leader_epoch,
        "replicas": list(registration.replicas),
        "isr": list(registration.isr),
    }
