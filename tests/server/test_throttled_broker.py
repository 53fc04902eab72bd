"""A partition moves to a throttled broker, and brokers' settings change while they run."""

import pyarrow as pa

from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.processes import wait_until

LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"
BATCHES, BYTES, RATE = 30, 1000, 500
FAST = {"broker.heartbeat.interval.ms": 200, "broker.session.timeout.ms": 20000}


def produce(cluster):
    producer = Producer(cluster.cluster_uri, acks="all")
    for _ in range(BATCHES):
        values = pa.table({"value": pa.array([b"v" * BYTES], pa.binary()), "partition": [0]})
        raise_first_error(producer.send("t", values))


def row_of_2(cluster):
    return next(iter(ReplicaTable.open(StorageRoot.of(cluster.broker_uri(2))).replicas.values()), None)


def is_held_back(cluster):
    row = row_of_2(cluster)
    return row and (row.state, row.error) == (FollowerState.DELAYED, None) and 0 < row.log_end_offset < BATCHES


def test_th_01_th_02_a_move_is_slowed_down_and_its_throttle_is_lifted_while_brokers_run(spark, root):
    with LocalCluster(spark, root, brokers=2, configs=FAST) as cluster:
        admin = cluster.admin()
        admin.create_topic("t", assignment={0: [1]})
        produce(cluster)
        admin.alter_configs("t", {f"{LEADER}.replicas": "0:1", f"{FOLLOWER}.replicas": "0:2"})
        admin.alter_broker_configs(1, {f"{LEADER}.rate": RATE})
        admin.alter_broker_configs(2, {f"{FOLLOWER}.rate": 2 * RATE})
        admin.alter_partition_reassignments({("t", 0): [1, 2]})
        wait_until(lambda: is_held_back(cluster), "the new replica waits, and has not failed", timeout=90)
        wait_until(lambda: (admin.describe_brokers()[1].leader_replication_rate or 0) > 0, "what the leader measures")
        wait_until(lambda: (admin.describe_brokers()[2].follower_replication_rate or 0) > 0, "what the follower does")
        leader, follower = admin.describe_brokers().values()
        assert (leader.leader_replication_quota, follower.follower_replication_quota) == (RATE, 2 * RATE)
        assert (leader.follower_replication_quota, follower.leader_replication_quota) == (None, None)
        assert (leader.divergences, follower.divergences) == (0, 0)
        assert admin.list_partition_reassignments(), "it has not come far yet"
        for broker, key in ((1, f"{LEADER}.rate"), (2, f"{FOLLOWER}.rate")):
            admin.alter_broker_configs(broker, {}, [key])
        wait_until(lambda: not admin.list_partition_reassignments(), "the move is done", timeout=60)
        (partition,) = admin.describe_topic("t").partitions
        assert (partition.replicas, partition.isr) == ((1, 2), (1, 2))
        logs = [ReplicaLog.open(StorageRoot.of(cluster.broker_uri(broker)).child("log")) for broker in (1, 2)]
        first, second = (log.read(partition.topic_id_partition, 0) for log in logs)
        assert (first.num_rows, second.equals(first)) == (BATCHES, True)
        wait_until(lambda: admin.describe_brokers()[2].follower_replication_quota is None, "no quota any more")
