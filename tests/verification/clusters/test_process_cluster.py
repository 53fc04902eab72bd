"""A cluster of processes: its roots are on the disk or in object stores, which end with it."""

import os
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import BrokerNotAvailableException, KafkaStorageException
from lakelog.replication.storage.delta.storage_root import StorageRoot, root_uris
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.faults.soak_plan import BROKERS, STORED
from lakelog.verification.roots.roots import LocalRoots


def test_the_store_of_a_broker_hangs_while_it_is_frozen_and_ends_with_the_cluster(tmp_path: Path) -> None:
    """Its clients find it by the environment, also those in processes of their own."""
    cluster = ProcessCluster(LocalRoots(tmp_path, STORED["mixed"]), tmp_path, BROKERS)
    name = "LAKELOG_STORAGE_3_AWS_ENDPOINT_URL"
    with cluster:
        options = Config().storage_options(3)
        assert os.environ[name] == options["AWS_ENDPOINT_URL"]
        root = StorageRoot.of(cluster.brokers[3].root, options)
        root.write("probe", b"1")
        assert (cluster.roots.path(3) / "probe").read_bytes() == b"1"
        assert {broker: str(cluster.roots.path(broker)) for broker in (1, 2)} == {
            broker: cluster.brokers[broker].root for broker in (1, 2)
        }
        impatient = StorageRoot.of(root.uri, options, timeout_ms=400)
        cluster.roots.hang(root.uri)
        with pytest.raises(KafkaStorageException, match="error sending request"):
            impatient.read("probe")
        cluster.roots.bring_back(root.uri)
        assert root.read("probe") == b"1"
    assert not cluster.roots.stores.processes[root.uri].is_running()
    assert name not in os.environ


def test_each_of_several_cluster_roots_may_be_in_a_store_of_its_own(tmp_path: Path) -> None:
    """Their options are by bucket, and no option is for all of them."""
    cluster = ProcessCluster(LocalRoots(tmp_path, ["cluster"], cluster_roots=3), tmp_path, BROKERS)
    with cluster:
        cluster.format()
        endpoints = set[str]()
        for number in (1, 2, 3):
            bucket = f"bucket-cluster-{number}"
            assert (tmp_path / f"store-cluster-{number}" / bucket / "cluster" / "metadata").is_dir()
            endpoints.add(Config().storage_options("cluster", bucket=bucket)["AWS_ENDPOINT_URL"])
        assert (len(endpoints), Config().storage_options("cluster")) == (3, {})
        cluster.roots.stores.processes[root_uris(cluster.uri)[1]].kill()
        cluster.format_root(1)
        assert Path(cluster.brokers[1].root, "cluster").is_dir()


def test_each_root_may_be_in_a_store_of_its_own(tmp_path: Path) -> None:
    cluster = ProcessCluster(LocalRoots(tmp_path, STORED["s3"]), tmp_path, BROKERS)
    with cluster:
        cluster.format()
        for broker in BROKERS:
            cluster.format_root(broker)
            assert {path.name for path in cluster.roots.path(broker).iterdir()} == {"cluster", "log", "replicas"}
        stores = cluster.roots.stores.processes
        assert len({Config().storage_options(owner)["AWS_ENDPOINT_URL"] for owner in STORED["s3"]}) == len(stores) == 4
        died = stores[cluster.brokers[1].root]._process
        assert died is not None
        died.kill()
        died.wait()
        with pytest.raises(BrokerNotAvailableException, match="store"):
            cluster.check()
