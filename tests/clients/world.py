"""A cluster of tables without brokers: the tests write the logs and the replica rows."""

import dataclasses

from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.config import Config
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from tests.copied_roots import copied
from tests.registrations import joined, register
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, fill, follow, lead

LONG = 600_000  # ms, longer than any of these tests
RARELY = {"session_timeout_ms": 600_000, "heartbeat_interval_ms": 60_000}  # no heartbeat comes during a test


class World:
    """Two partitions on brokers 1 and 2. Broker 1 leads them, and has published no rows yet."""

    def __init__(self, root, cluster_roots=1):
        if cluster_roots == 1:
            home = StorageRoot.of(root).child("cluster")
            cluster_id = copied(format_cluster, home, Config())
        else:
            uris = [f"{root}/cluster-{number}" for number in range(1, cluster_roots + 1)]
            home = storage_root(",".join(uris), "cluster", Config())
            cluster_id = format_cluster(home, Config())
        self.uri, self.cluster = home.uri, Cluster.open(home.uri)
        self.roots = {broker: StorageRoot.of(root).child(f"broker-{broker}") for broker in (1, 2)}
        for broker, storage in self.roots.items():
            copied(format_broker, storage, cluster_id, broker)
            register(home, broker, storage)
        self.logs = {broker: ReplicaLog.open(storage.child(LOG.name)) for broker, storage in self.roots.items()}
        self.rows = {broker: {} for broker in self.roots}
        self.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2)], (), {"who": "test"})
        self.partitions = {p: joined(new_partition(TOPIC, TOPIC_ID, p.partition, (1, 2), {1, 2})) for p in (P0, P1)}
        self.cluster.metadata.put(self.partitions.values(), {"who": "test"})
        lead(self.logs[1], P0, P1, epoch=0)
        follow(self.logs[2], P0, P1, epoch=0)

    def add_broker(self, broker, home):
        """Adds a broker, whose empty log follows partition 0. `home`: the folder of the cluster."""
        storage = self.roots[broker] = StorageRoot.of(home).child(f"broker-{broker}")
        format_broker(storage, self.cluster.cluster_id, broker)
        register(self.cluster.root, broker, storage)
        self.logs[broker], self.rows[broker] = ReplicaLog.open(storage.child(LOG.name)), {}
        follow(self.logs[broker], P0, epoch=0)
        everyone = (*self.partitions[P0].replicas, broker)
        self.change(P0, replicas=everyone, isr=everyone)

    def change(self, partition=P0, **changes):
        """Changes a partition in the metadata."""
        self.partitions[partition] = dataclasses.replace(self.partitions[partition], **changes)
        self.cluster.metadata.put([self.partitions[partition]], {"who": "test"})

    def say(self, high_watermark, partition=P0, broker=1, **changes):
        """Publishes a broker's replica row from its log, with the given HW and other fields."""
        state = self.logs[broker].refresh()
        log = state.partition(partition)
        role = LEADER_ROLE if log.role.is_leader else FOLLOWER_ROLE
        row = ReplicaStatus(
            TOPIC, partition.topic_id, partition.partition, broker, 1, log.role.leader_epoch, role, "Fetching",
            log.log_start_offset, log.log_end_offset, high_watermark, log.lineage, None, state.version,
            chain=log.log_end.chain,
        )  # fmt: skip
        self.rows[broker][partition] = dataclasses.replace(row, **changes)
        ReplicaTable.open(self.roots[broker]).publish(self.rows[broker].values(), "test")

    def make_again(self, *counts):
        """Deletes the topic, and makes it again with partitions of so many committed records; returns them."""
        again = [TopicIdPartition("flights-id-2", number) for number in range(len(counts))]
        self.cluster.topics.change([Topic(TOPIC, "flights-id-2", len(counts))], (), {"who": "test"})
        new = {p: joined(new_partition(TOPIC, p.topic_id, p.partition, (1, 2), {1, 2})) for p in again}
        gone = dict.fromkeys(self.partitions)
        self.cluster.metadata.change(lambda _: {**gone, **new}, {"who": "test"})
        self.partitions, self.rows = new, {broker: {} for broker in self.roots}
        lead(self.logs[1], *again, epoch=0)
        for partition, count in zip(again, counts, strict=True):
            fill(self.logs[1], partition, *([count] if count else []))
            self.say(count, partition)
        return again

    def put_in_rack(self, broker, rack):
        """Registers the broker again, in a rack."""
        register(self.cluster.root, broker, self.roots[broker], rack=rack)

    def consumer(self, group=None):
        return Consumer(self.uri, group)


def led_world(root):
    """Broker 1 leads both partitions, which have no records yet, and says so."""
    world = World(root)
    world.say(0)
    world.say(0, P1)
    return world


def partly_committed_world(root):
    """Partition 0 has 0-2 | 3-4, of which 4 is not committed, partition 1 has 0-1."""
    world = World(root)
    fill(world.logs[1], P0, 3, 2)
    fill(world.logs[1], P1, 2)
    world.say(4)
    world.say(2, P1)
    return world


def filled_world(root):
    """flights-0 has offsets 0 to 2, flights-1 has 0 and 1, all committed."""
    world = World(root)
    fill(world.logs[1], P0, 3)
    fill(world.logs[1], P1, 2)
    world.say(3)
    world.say(2, P1)
    return world
