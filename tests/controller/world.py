"""A cluster on real tables without running brokers. The test's clock decides when brokers die."""

from lakelog.replication.config import Config
from lakelog.replication.controller.active_controller import ActiveController
from lakelog.replication.protocol.broker_registration import BrokerRegistration, Liveness
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clock import Clock
from tests.copied_roots import copied
from tests.registrations import joined

P = TopicIdPartition("flights-id", 0)
QUIET = {"auto.leader.rebalance.enable": "false"}


class World:
    """Brokers 1 to 3 and the topic flights. Partition 0 has replicas on all three, and 1 leads."""

    def __init__(self, root):
        home = StorageRoot.of(root).child("cluster")
        copied(_three_brokers, home)
        self.cluster, self.clock, self.terms = Cluster.open(home.uri), Clock(), 0
        self.liveness = Liveness(6000, self.clock)
        self.beats = {broker: BrokerTable.open_or_create(home, broker) for broker in (1, 2, 3)}
        self.add_topic("flights", (1, 2, 3))
        self.fail_over()

    def register(self, broker, epoch):
        _register(self.beats[broker], broker, epoch)

    def fail_over(self, settings=None):
        """Elects another controller, which has watched the heartbeats from the beginning."""
        self.terms += 1
        before = self.controller.context.brokers if self.terms > 1 else {}
        cluster = Cluster.open(self.cluster.root.uri, Config.from_properties({**QUIET, **(settings or {})}))
        self.controller = ActiveController(cluster, self.liveness, Lease("test", self.terms), self.clock)
        self.controller.fail_over(before)

    def add_topic(self, topic, *assignments, live=(1, 2, 3), configs=None):
        row = Topic(topic, f"{topic}-id", len(assignments), configs or {})
        self.cluster.topics.change([row], (), {"who": "test"})
        self.put(*(joined(new_partition(topic, f"{topic}-id", n, ar, live)) for n, ar in enumerate(assignments)))

    def put(self, *registrations):
        """Writes the metadata that an earlier controller has left."""
        self.cluster.metadata.put(registrations, {"who": "test"})
        if self.terms:
            self.fail_over()

    def poll(self, *alive, after=7.0):
        """The controller looks again. Only these brokers have sent a heartbeat since."""
        self.clock.now += after
        for broker in alive:
            self.beats[broker].refresh()
            self.beats[broker].heartbeat(self.beats[broker].registration.broker_epoch, "heartbeat")
        self.controller.poll()

    def all(self):
        self.cluster.metadata.refresh()
        return self.cluster.metadata.partitions

    def partition(self, partition=P):
        found = self.all()[partition]
        return found.leader, found.isr, found.leader_epoch, found.partition_epoch

    def commits(self):
        return last_version(self.cluster.root.child("metadata"))


def _three_brokers(home):
    format_cluster(home, Config())
    for broker in (1, 2, 3):
        _register(BrokerTable.open_or_create(home, broker), broker, epoch=1)


def _register(table, broker, epoch):
    table.register(lambda _: BrokerRegistration(broker, f"/{broker}", None, epoch, -1, False, None, "log", 0))
