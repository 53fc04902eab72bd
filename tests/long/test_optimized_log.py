"""OPTIMIZE on the log of a running broker, in a cluster of the older format: nothing is lost and all comes back."""

from dataclasses import replace

import pytest

from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.config import Config
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.processes import wait_until


@pytest.mark.parametrize("vacuumed", [False, True])
def test_all_partitions_come_back_but_those_whose_only_segment_is_gone(spark, tmp_path, vacuumed):
    root = StorageRoot.of(str(tmp_path / "cluster"))
    format_cluster(replace(root, admits_writers=True), Config())
    with LocalCluster(spark, str(tmp_path), configs={"log.cleaner.backoff.ms": 500}) as cluster:
        admin = cluster.admin()
        admin.create_topic("three", assignment={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
        admin.create_topic("one", assignment={0: [1]})
        producer = Producer(cluster.cluster_uri)
        rows = [{"value": str(number).encode(), "partition": number % 3} for number in range(300)]
        for start in range(0, 300, 30):
            producer.send("three", rows[start : start + 30])
            producer.send("one", [{"value": b"x", "partition": 0}] * 3)
        seen = Cluster.open(cluster.cluster_uri)

        def is_in_sync(topic):
            seen.metadata.refresh()
            found = [r for r in seen.metadata.partitions.values() if r.topic == topic]
            return bool(found) and all(set(r.isr) == set(r.replicas) and r.leader > 0 for r in found)

        wait_until(lambda: is_in_sync("three"), "all replicas are in sync", 60)
        log = StorageRoot.of(str(tmp_path / "broker-1")).child("log")
        before = {name for name in log.list() if name.endswith(".parquet")}
        spark.sql(f"OPTIMIZE delta.`{log.uri}`").collect()
        if vacuumed:
            for name in before:
                log.delete(name)
            wait_until(lambda: not is_in_sync("three"), "broker 1 notices it", 60)
        wait_until(lambda: is_in_sync("three"), "three is healed", 120)
        values = read_committed(spark, cluster.cluster_uri, "three").select("value").collect()
        assert sorted(int(bytes(row.value)) for row in values) == list(range(300))
        if not vacuumed:
            wait_until(lambda: is_in_sync("one"), "one is healed", 60)
            assert read_committed(spark, cluster.cluster_uri, "one").count() == 30
