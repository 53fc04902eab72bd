"""A broker's cache of the metadata. The test moves the clock."""

import shutil
from dataclasses import replace

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.topic import Entity, Topic
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.config_table import ConfigTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from tests import registrations
from tests.clients.world import World
from tests.clock import Clock
from tests.copied_roots import copied
from tests.storage.logs import P0, P1, follow


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cluster(root):
    home = StorageRoot.of(root).child("cluster")
    copied(format_cluster, home, Config())
    return Cluster.open(home.uri)


def register(cluster, broker_id, epoch=1):
    table = BrokerTable.open_or_create(cluster.root, broker_id)
    table.register(lambda _: BrokerRegistration(broker_id, f"/{broker_id}", None, epoch, -1, False, None, "log", 0))
    return table


def test_mc_01_mc_03_a_cache_has_topics_partitions_and_brokers(cluster, clock):
    cache = MetadataCache(cluster, clock)
    assert (cache.partitions, cache.alive_brokers()) == ({}, set())
    register(cluster, 1)
    writer = Cluster.open(cluster.root.uri)
    writer.topics.change([Topic("t", "id", 1, {"min.insync.replicas": "5"})], (), {"who": "test"})
    partition = new_partition("t", "id", 0, (1, 2), {1, 2})
    writer.metadata.put([partition], {"who": "test"})
    assert cache.refresh()
    assert cache.contains(partition.topic_id_partition)
    assert cache.partitions[partition.topic_id_partition] == partition
    assert cache.cluster.broker_root(1).uri == "/1"
    assert cache.min_isr(partition) == 2, "no more than there are replicas"
    assert not cache.refresh(), "nothing has moved"


@pytest.mark.parametrize(
    ("read", "unreadable", "moved"),
    [
        (MetadataCache.refresh, (Cluster, "refresh_brokers"), "metadata"),
        (MetadataCache.refresh, (ConfigTable, "refresh"), "topics"),
        (MetadataCache.poll, (Cluster, "poll_brokers"), "metadata"),
        (MetadataCache.poll, (ConfigTable, "refresh"), "topics"),
    ],
)
def test_mc_01_a_refresh_after_a_failed_one_reports_the_changes_of_both(
    cluster, clock, monkeypatch, read, unreadable, moved
):
    cache, writer = MetadataCache(cluster, clock), Cluster.open(cluster.root.uri)
    if moved == "topics":
        writer.topics.change([Topic("t", "id", 1)], (), {"who": "test"})
    else:
        writer.metadata.put([new_partition("t", "id", 0, (1, 2), {1, 2})], {"who": "test"})
    with monkeypatch.context() as patch:
        patch.setattr(*unreadable, cannot_be_read)
        with pytest.raises(KafkaStorageException):
            read(cache)
    assert read(cache)
    assert not read(cache)


def cannot_be_read(*_):
    raise KafkaStorageException("503 Slow Down")


def test_settings_of_a_topic_are_parsed_once_and_again_when_topics_change(cluster, clock):
    writer, partition = Cluster.open(cluster.root.uri), new_partition("t", "id", 0, (1, 2), {1, 2})
    writer.topics.change([Topic("t", "id", 1, {"min.insync.replicas": "2"})], (), {"who": "test"})
    cache = MetadataCache(cluster, clock)
    assert cache.topic_config(partition) is cache.topic_config(partition)
    writer.topics.change([Topic("t", "id", 1)], (), {"who": "test"})
    cache.refresh()
    assert cache.min_isr(partition) == 1


RATE = "follower.replication.throttled.rate"


def test_th_02_dynamic_settings_of_brokers_apply_while_they_run(cluster, clock):
    """The broker's own settings, otherwise those of all brokers, otherwise those of the properties file."""
    writer = Cluster.open(cluster.root.uri)
    cache = MetadataCache(Cluster.open(cluster.root.uri, Config.from_properties({RATE: 9})), clock)
    rates = []
    for put in ({}, {"<default>": {RATE: "5"}}, {"1": {RATE: "7"}}, {"<default>": {}}):
        writer.configs.change({Entity("brokers", name): told for name, told in put.items()}, {"who": "test"})
        assert not cache.refresh(), "nobody's role is another one"
        rates.append(tuple(cache.config_of_broker(b).follower_replication_throttled_rate for b in (1, 2)))
    assert rates == [(9, 9), (5, 5), (7, 5), (7, 9)]
    assert cache.config_of_broker(1).broker_id == cache.cluster.config.broker_id, "the others are as they were"


def test_th_02_a_broker_goes_on_with_settings_that_a_newer_version_has_set(cluster, clock, caplog):
    """Its heartbeats would else be errors, as they have the quotas. Each setting is one warning."""
    writer = Cluster.open(cluster.root.uri)
    put = {"<default>": {"x.of.all": "1", RATE: "5"}, "1": {"x.of.one": "1", "cordoned.log.dirs": "/a"}}
    writer.configs.change({Entity("brokers", name): told for name, told in put.items()}, {"who": "test"})
    writer.configs.change({Entity("groups", "1"): {RATE: "7"}}, {"who": "test"})
    cache = MetadataCache(cluster, clock)
    for _ in range(2):
        assert [cache.config_of_broker(b).follower_replication_throttled_rate for b in (1, 2)] == [5, 5]
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert sorted(said) == [
        f"broker setting x.of.{whose} is ignored: this version of Lakelog does not know it" for whose in ("all", "one")
    ]


def test_th_02_throttled_replicas_come_from_the_settings_of_topics(cluster, clock):
    key = "leader.replication.throttled.replicas"
    writer = Cluster.open(cluster.root.uri)
    writer.topics.change([Topic("a", "1", 1, {key: "0:1"}), Topic("b", "2", 1, {key: ""})], (), {"who": "test"})
    cache = MetadataCache(cluster, clock)
    assert cache.throttled_replicas(key) == {"a": "0:1"}
    writer.topics.change([Topic("a", "1", 1), Topic("c", "3", 1, {key: "*"})], (), {"who": "test"})
    cache.refresh()
    assert cache.throttled_replicas(key) == {"c": "*"}
    assert cache.throttled_replicas("follower.replication.throttled.replicas") == {}


def test_last_rows_of_a_broker_are_returned_without_a_read_of_its_root(cluster, clock, root):
    home = f"{root}/broker-2"
    row = ReplicaStatus("t", "id", 0, 2, 1, 0, "follower", "Fetching", 0, 5, 0, (), None, 1)
    published = ReplicaTable.create(StorageRoot.of(home))
    published.publish([row], "test")
    BrokerTable.open_or_create(cluster.root, 2).register(
        lambda _: BrokerRegistration(2, home, None, 1, -1, False, None, "log", 0)
    )
    cache = MetadataCache(cluster, clock)
    assert cache.last_rows(2) == {}, "it was not read yet"
    cache.replica_table(2)
    published.publish([replace(row, log_end_offset=6)], "test")
    assert cache.last_rows(2) == {row.topic_id_partition: row}
    assert cache.last_rows(9) == {}


def test_bc_01_a_broker_is_alive_while_its_heartbeat_moves(cluster, clock):
    table = register(cluster, 1)
    register(cluster, 2)
    cache = MetadataCache(cluster, clock)
    assert cache.alive_brokers() == {1, 2}
    clock.now += 4
    table.heartbeat(1, "heartbeat")
    cache.refresh()
    clock.now += 4
    cache.refresh()
    assert cache.alive_brokers() == {1}, "the counter of 2 has stood still for 8 s, that of 1 for 4 s"


def test_a_broker_that_is_shutting_down_is_not_alive(cluster, clock):
    register(cluster, 1).heartbeat(1, "shutdown", shutting_down=True)
    assert MetadataCache(cluster, clock).alive_brokers() == set()


def test_mc_01_a_refresh_reports_a_broker_that_registered_or_moved(cluster, clock):
    cache = MetadataCache(cluster, clock)
    register(cluster, 1)
    assert cache.refresh()
    assert not cache.refresh()


def test_fe_03_rows_of_a_broker_whose_root_was_made_again_are_read_anew(root, clock):
    """Its new process has another table at the same place, with a lower or a higher version than before."""
    world = World(root)
    for lag in range(4):
        world.say(0, broker=2, lag=lag)
    cache = MetadataCache(world.cluster, clock)
    assert cache.replica_table(2).replicas[P0].lag == 3
    for epoch in (2, 3):
        shutil.rmtree(world.roots[2].uri)
        format_broker(world.roots[2], world.cluster.cluster_id, 2)
        world.logs[2] = ReplicaLog.open(world.roots[2].child(LOG.name))
        follow(world.logs[2], P0, P1, epoch=0)
        registrations.register(world.cluster.root, 2, world.roots[2], epoch=epoch)
        for lag in range(9 * (epoch - 2) + 1):
            world.say(0, broker=2, broker_epoch=epoch, lag=lag)
        cache.refresh()
        table = cache.replica_table(2)
        table.refresh()
        row = table.replicas[P0]
        assert (row.broker_epoch, row.lag) == (epoch, 9 * (epoch - 2))
        assert cache.replica_table(2) is table, "as long as it is the same process"


def test_mc_01_invalid_settings_of_a_topic_do_not_affect_partitions_of_others(cluster, clock, caplog):
    """A poll reads the settings of all led partitions. The error is logged once, not with every poll."""
    cache = MetadataCache(cluster, clock)
    configs = {"min.insync.replicas": "2", "retention.ms": "long"}
    Cluster.open(cluster.root.uri).topics.change([Topic("t", "id", 1, configs)], (), {"who": "test"})
    cache.refresh()
    partition = new_partition("t", "id", 0, (1, 2, 3), {1, 2, 3})
    assert [cache.min_isr(partition) for _ in range(3)] == [2, 2, 2]
    assert cache.topic_config(partition).retention_ms == Config().topic({}).retention_ms
    assert caplog.text.count("topic t: invalid settings are left out: ") == 1
