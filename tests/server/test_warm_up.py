"""A broker's Spark runs a micro-batch before anybody waits for one."""

import pytest

from lakelog.replication.config import Config
from lakelog.replication.server.warm_up import warm_up
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot


@pytest.fixture
def cluster(root):
    home = StorageRoot.of(root).child("cluster")
    format_cluster(home, Config())
    return Cluster.open(home.uri)


def test_a_follower_of_nothing_runs_a_micro_batch(spark, root, cluster):
    """Also where files are by default in HDFS, as on YARN: the checkpoint is on the local disk."""
    storage, session = StorageRoot.of(root).child("broker-2"), spark.newSession()
    session.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    format_broker(storage, cluster.cluster_id, 2)
    assert warm_up(session, storage, 2)
    assert not session.streams.active


def test_a_root_that_does_not_work_keeps_nobody_from_starting(spark, root, monkeypatch, caplog):
    def fails(*_):
        raise OSError("no such device")

    monkeypatch.setattr("lakelog.replication.server.warm_up.stream_segments", fails)
    assert not warm_up(spark, StorageRoot.of(root).child("gone"), 2)
    assert "broker 2: the warm-up has failed" in caplog.text


def test_a_stream_that_brings_nothing_is_not_waited_for_forever(spark, root, cluster, monkeypatch):
    monkeypatch.setattr("lakelog.replication.server.warm_up._PATIENCE_SECONDS", 0)
    storage = StorageRoot.of(root).child("broker-2")
    format_broker(storage, cluster.cluster_id, 2)
    warm_up(spark, storage, 2)
    assert not spark.streams.active
