"""Owners write checkpoints, so that to open a table does not mean to read all that was ever committed to it."""

from replication.config import Config
from replication.controller.controller import Controller
from replication.storage import delta_log
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.cluster import Cluster, format_cluster
from replication.storage.delta_log import CHECKPOINT_COMMITS
from replication.storage.filesystem import StorageRoot
from replication.storage.group_table import CommittedOffset
from replication.storage.replica_log import ReplicaLog
from tests.clock import Clock
from tests.storage.logs import P0, facts, fill, new_log


def checkpoints(root):
    return [name for name in root.child("_delta_log").list() if name.endswith(".checkpoint.parquet")]


def test_a_log_gets_a_checkpoint_when_it_is_due_and_reads_the_same(root):
    log = new_log(root, P0)
    log.checkpoint_if_due()
    assert checkpoints(log.root) == []
    fill(log, P0, *[1] * CHECKPOINT_COMMITS)
    log.checkpoint_if_due()
    assert len(checkpoints(log.root)) == 1
    fill(log, P0, 1)
    log.checkpoint_if_due()
    assert len(checkpoints(log.root)) == 1, "one is enough for a hundred commits"
    assert facts(ReplicaLog.open(log.root), P0) == facts(log, P0)


def test_a_heartbeat_goes_on_over_checkpoints(root):
    table = BrokerTable.open_or_create(StorageRoot.of(root), 1)
    table.register(lambda _: BrokerRegistration(1, "/1", None, 1, 0, -1, False, None, "log", 0))
    for _ in range(CHECKPOINT_COMMITS):
        table.update(1, "heartbeat")
    table.checkpoint_if_due()
    table.update(1, "heartbeat")
    folder = StorageRoot.of(root).child("brokers", "1")
    assert len(checkpoints(folder)) == 1
    found = BrokerTable.open(StorageRoot.of(root), 1).registration
    assert found is not None
    assert found.heartbeat == CHECKPOINT_COMMITS + 1


def test_the_active_controller_keeps_the_tables_of_its_cluster_cheap_to_open(root, monkeypatch):
    storage = StorageRoot.of(root)
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 3)
    format_cluster(storage, Config())
    clock = Clock()
    controller = Controller(Cluster.open(storage.uri), "test", clock)
    controller.tick()
    clock.now += 3
    controller.tick()
    writer = Cluster.open(storage.uri)
    for number in range(3):
        writer.groups.commit([CommittedOffset("g", "t", "id", 0, number)])
        writer.producers.init_producer("p")
    for _ in range(4):
        clock.now += 3
        controller.tick()
    checkpointed = {name for name in storage.list() if checkpoints(storage.child(name))}
    assert checkpointed == {"controller", "groups", "producers"}
