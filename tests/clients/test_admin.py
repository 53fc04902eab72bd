"""Topics are made whole, also by the next client where one has died half way."""

import pytest

from replication.clients.admin import AdminClient
from replication.config import Config
from replication.errors import TopicExistsException
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.cluster import Cluster, format_cluster
from replication.storage.filesystem import StorageRoot
from replication.storage.metadata_table import MetadataTable


@pytest.fixture
def cluster_uri(root):
    home = StorageRoot.of(root).child("cluster")
    format_cluster(home, Config())
    for broker_id in (1, 2, 3):
        row = BrokerRegistration(broker_id, f"/{broker_id}", None, 1, 0, -1, False, None, "log", 0)
        BrokerTable.open_or_create(home, broker_id).register(lambda _, row=row: row)
    return home.uri


@pytest.fixture
def half_made(cluster_uri, monkeypatch):
    """Topic t with two partitions, whose maker died between its two commits."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MetadataTable, "add", die)
        with pytest.raises(KeyboardInterrupt):
            AdminClient(cluster_uri).create_topic("t", 2, 3)
    return cluster_uri


def test_a_half_made_topic_has_no_partitions(half_made):
    assert AdminClient(half_made).describe_topic("t").partitions == ()


def test_a_half_made_topic_is_finished_under_its_id(half_made):
    topic_id = Cluster.open(half_made).topics.topics["t"].topic_id
    made = AdminClient(half_made).create_topic("t", 2, 3)
    assert made.topic.topic_id == topic_id
    assert {p.topic_id for p in AdminClient(half_made).describe_topic("t").partitions} == {topic_id}


def test_a_half_made_topic_keeps_its_number_of_partitions(half_made):
    with pytest.raises(TopicExistsException, match="t exists already, with 2 partitions"):
        AdminClient(half_made).create_topic("t", 5, 3)


def test_who_is_first_decides_the_assignment(half_made, monkeypatch):
    """Two clients finish the same topic; the second one's partitions are not written over the first one's."""
    add, first = MetadataTable.add, {0: [1, 2, 3], 1: [1, 2, 3]}

    def overtaken(self, partitions, cause):
        monkeypatch.setattr(MetadataTable, "add", add)
        AdminClient(half_made).create_topic("t", assignment=first)
        return add(self, partitions, cause)

    monkeypatch.setattr(MetadataTable, "add", overtaken)
    with pytest.raises(TopicExistsException, match="another client"):
        AdminClient(half_made).create_topic("t", assignment={0: [3, 2, 1], 1: [3, 2, 1]})
    partitions = AdminClient(half_made).describe_topic("t").partitions
    assert {p.partition: list(p.replicas) for p in partitions} == first
