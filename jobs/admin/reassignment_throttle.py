"""The throttle of a reassignment: set before partitions begin to move, removed when all have come.

Kafka: `ReassignPartitionsCommand.modifyReassignmentThrottle`, `clearAllThrottles`. KIP-73. [TH-02]
"""

from collections.abc import Iterable, Mapping, Sequence

from lakelog.jobs.cli.console import say
from lakelog.jobs.cli.partition_files import TopicPartition
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import begin_reassignment

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def set_throttle(
    admin: AdminClient, found: Mapping[TopicPartition, PartitionRegistration],
    wanted: Mapping[TopicPartition, Sequence[int]], rate: int, *, validate_only: bool,
) -> None:  # fmt: skip
    """Throttles what is to move, and what moves already: at the replicas that there are as leaders, at those that come
    as followers. Raises what the controller refuses, before anything moves."""
    moving = moves(found, wanted)
    for topic in sorted({r.topic for r in moving}):
        settings = dict(zip(REPLICAS, throttled_replicas([r for r in moving if r.topic == topic]), strict=True))
        admin.alter_configs(topic, settings, validate_only=validate_only)
    brokers = sorted({broker for r in moving for broker in r.replicas} & admin.describe_brokers().keys())
    for broker in brokers:
        admin.alter_broker_configs(broker, dict.fromkeys(RATES, rate), validate_only=validate_only)
    if brokers and not validate_only:
        say(f"The inter-broker throttle limit was set to {rate} B/s; run --verify, now and then, to have it removed")


def moves(
    found: Mapping[TopicPartition, PartitionRegistration], wanted: Mapping[TopicPartition, Sequence[int]]
) -> list[PartitionRegistration]:
    """The partitions that gain replicas, as they are while they move: those that are to, in place of what they do now,
    and those of these topics that do already. Others have nothing to fetch that could be slowed down."""
    topics = {topic for topic, _ in wanted}
    begun = [begin_reassignment(r, wanted[p]) if p in wanted else r for p, r in found.items() if r.topic in topics]
    return [r for r in begun if r.adding_replicas]


def throttled_replicas(moving: Iterable[PartitionRegistration]) -> tuple[str, str]:
    """The settings of a topic: who may lead a partition while it moves, and who is added to it."""
    leaders = [(r.partition, b) for r in moving for b in r.replicas if b not in r.adding_replicas]
    followers = [(r.partition, b) for r in moving for b in r.adding_replicas]
    return _text(leaders), _text(followers)


def _text(pairs: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{partition}:{broker}" for partition, broker in sorted(pairs))


def clear_throttles(admin: AdminClient, topics: Iterable[str]) -> None:
    """Removes the throttle rates of all brokers and the throttled replicas of these topics, unless a partition moves.
    As Kafka's tool does, it removes them no matter which command has set them."""
    if admin.list_partition_reassignments():
        return
    rates = admin.describe_broker_configs()
    slowed = [broker for broker, configs in rates.items() if broker.isdigit() and set(RATES) & configs.keys()]
    for broker in slowed:
        admin.alter_broker_configs(broker, {}, RATES)
    if slowed:
        say(f"Cleared broker-level throttles on brokers {','.join(slowed)}")
    known = {described.topic.topic: described.topic for described in admin.describe_topics()}
    for topic in sorted(set(topics) & known.keys()):
        if set(REPLICAS) & known[topic].configs.keys() and not known[topic].deleting:
            admin.alter_configs(topic, {}, REPLICAS)
            say(f"Cleared topic-level throttles on topic {topic}")
