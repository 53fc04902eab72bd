"""What an admin client asks is decided by the controller, and what was decided is what it gets."""

import pytest

from replication.clients.admin import AdminClient
from replication.config import Config
from replication.errors import (
    InvalidConfigurationException,
    InvalidPartitionsException,
    InvalidReplicaAssignmentException,
    InvalidReplicationFactorException,
    InvalidTopicException,
    TimeoutException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.cluster import Cluster, format_cluster
from replication.storage.filesystem import StorageRoot
from tests.controllers import controller_of


@pytest.fixture
def cluster_uri(root):
    home = StorageRoot.of(root).child("cluster")
    format_cluster(home, Config())
    for broker_id in (1, 2, 3):
        row = BrokerRegistration(broker_id, f"/{broker_id}", None, 1, 0, -1, False, None, "log", 0)
        BrokerTable.open_or_create(home, broker_id).register(lambda _, row=row: row)
    return home.uri


@pytest.fixture
def admin(cluster_uri):
    with controller_of(cluster_uri):
        yield AdminClient(cluster_uri)


def test_li_02_a_topic_is_made_with_leaders(admin):
    made = admin.create_topic("t", 4, 3, configs={"min.insync.replicas": 2})
    assert made.topic.configs == {"min.insync.replicas": "2"}
    assert [(p.partition, p.leader, p.isr, p.leader_epoch) for p in made.partitions] == [
        (p.partition, p.replicas[0], p.replicas, 0) for p in made.partitions
    ]
    assert admin.list_topics() == ["t"]


def test_a_topic_that_is_only_validated_is_not_made(admin):
    said = admin.validate_topic("t", assignment={0: [3, 1], 1: [1, 2]})
    assert said == "partition 0 on brokers 3,1; partition 1 on brokers 1,2"
    assert admin.list_topics() == []


REFUSED = {
    "a name": (InvalidTopicException, lambda admin: admin.create_topic("a/b")),
    "exists": (TopicExistsException, lambda admin: admin.create_topic("there")),
    "too many replicas": (InvalidReplicationFactorException, lambda admin: admin.create_topic("t", 1, 4)),
    "no partitions": (InvalidPartitionsException, lambda admin: admin.create_topic("t", 0)),
    "unknown broker": (InvalidReplicaAssignmentException, lambda admin: admin.create_topic("t", assignment={0: [9]})),
    "twice": (InvalidReplicaAssignmentException, lambda admin: admin.create_topic("t", assignment={0: [1, 1]})),
    "both": (InvalidPartitionsException, lambda admin: admin.create_topic("t", 1, None, {0: [1]})),
    "unknown key": (InvalidConfigurationException, lambda admin: admin.create_topic("t", configs={"x": 1})),
    "delete: unknown": (UnknownTopicOrPartitionException, lambda admin: admin.delete_topic("t")),
    "fewer partitions": (InvalidPartitionsException, lambda admin: admin.create_partitions("there", 1)),
    "partitions of none": (UnknownTopicOrPartitionException, lambda admin: admin.create_partitions("t", 2)),
    "gap": (InvalidPartitionsException, lambda admin: admin.create_partitions("there", 2, {2: [1]})),
    "bad setting": (InvalidConfigurationException, lambda admin: admin.alter_configs("there", {"retention": "x"})),
    "bad key": (InvalidConfigurationException, lambda admin: admin.alter_configs("there", {}, ["retention"])),
}


@pytest.mark.parametrize(("error", "ask"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_says_why_and_changes_nothing(admin, cluster_uri, error, ask):
    admin.create_topic("there", assignment={0: [1, 2]})
    cluster = Cluster.open(cluster_uri)
    before = cluster.metadata.version, cluster.topics.topics
    with pytest.raises(error):
        ask(admin)
    cluster = Cluster.open(cluster_uri)
    assert (cluster.metadata.version, cluster.topics.topics) == before


def test_li_07_partitions_are_added(admin):
    admin.create_topic("t", assignment={0: [1, 2]})
    admin.create_partitions("t", 3, {1: [2, 3], 2: [3, 1]})
    assert [(p.replicas, p.leader) for p in admin.describe_topic("t").partitions] == [
        ((1, 2), 1), ((2, 3), 2), ((3, 1), 3),
    ]  # fmt: skip
    admin.create_partitions("t", 7)
    partitions = admin.describe_topic("t").partitions
    assert [p.partition for p in partitions] == list(range(7))
    assert {len(p.replicas) for p in partitions} == {2}


def test_settings_are_put_and_deleted(admin):
    admin.create_topic("t", configs={"min.insync.replicas": 2})
    admin.alter_configs("t", {"unclean.leader.election.enable": "true"}, ["min.insync.replicas"])
    assert admin.describe_topic("t").topic.configs == {"unclean.leader.election.enable": "true"}


def test_without_a_controller_a_request_stays_and_the_next_one_decides_it(cluster_uri):
    impatient = AdminClient(cluster_uri, Config.from_properties({"request.timeout.ms": 100}))
    with pytest.raises(TimeoutException, match="no controller has decided request"):
        impatient.create_topic("t")
    with controller_of(cluster_uri):
        AdminClient(cluster_uri).create_topic("u")
    assert AdminClient(cluster_uri).list_topics() == ["t", "u"]
