"""Whether a root works, judged by reads and writes, with one fault after the other."""

import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterIdException, KafkaStorageException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_probe import RootWatch, prepare_root, probe_root, storage_error
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.verification.memory_root import MemoryStore
from lakelog.verification.roots.storage_faults import bring_back, is_away, take_away
from tests.clock import Clock


@pytest.fixture
def broker_root(root):
    found = StorageRoot.of(root).child("broker-1")
    format_broker(found, "cluster-id", 1)
    return found


def file_for_folder(name):
    def put(root):
        folder = Path(root.uri, name)
        folder.rename(f"{root.uri}.{name.replace('/', '.')}")
        folder.write_text("no folder")

    return put


def folder_for_file(root):
    probe = Path(root.uri, "storage-probe")
    probe.unlink()
    probe.mkdir()


def gone(root):
    Path(root.uri).rename(root.uri + ".gone")


def put_back(root):
    bring_back(root.uri)
    gone_to, probe = Path(root.uri + ".gone"), Path(root.uri, "storage-probe")
    if gone_to.exists():
        assert not Path(root.uri).exists(), "nobody has made it again"
        gone_to.rename(root.uri)
    if probe.is_dir():
        probe.rmdir()
        probe_root(root, "cluster-id", 1)


FAULTS = [
    pytest.param(lambda root: take_away(root.uri), "KafkaStorageException", id="a file in place of the root"),
    pytest.param(gone, "KafkaStorageException", id="no root at all"),
    pytest.param(file_for_folder("log/_delta_log"), "KafkaStorageException", id="the log"),
    pytest.param(file_for_folder("log"), "KafkaStorageException", id="the folder of the log"),
    pytest.param(file_for_folder("replicas/_delta_log"), "KafkaStorageException", id="the replicas"),
    pytest.param(folder_for_file, "KafkaStorageException", id="it can be read and not be written"),
]


@pytest.mark.parametrize(("fault", "error"), FAULTS)
def test_ol_02_what_is_wrong_with_a_root_is_told(broker_root, fault, error):
    assert storage_error(broker_root, "cluster-id", 1) is None
    fault(broker_root)
    told = storage_error(broker_root, "cluster-id", 1)
    assert told is not None
    assert told.startswith(f"{error}: ")
    assert broker_root.uri in told


def test_ol_02_between_two_probes_a_cheap_look_is_enough(broker_root):
    watch = RootWatch(broker_root)
    assert not watch.works_as_before(), "there was no probe yet"
    probe_root(broker_root, "cluster-id", 1)
    assert watch.works_as_before()
    for fault in (lambda root: take_away(root.uri), gone, folder_for_file):
        fault(broker_root)
        assert not watch.works_as_before()
        put_back(broker_root)
        assert watch.works_as_before()


def test_ol_02_in_an_object_store_the_cheap_look_is_taken_once_a_minute(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    with MemoryStore("probe").opened() as store:
        root = StorageRoot.of(f"{store.uri}/broker-1")
        format_broker(root, "cluster-id", 1)
        watch = RootWatch(root)
        probe_root(root, "cluster-id", 1)
        assert watch.works_as_before()
        root.delete("storage-probe")
        clock.now += 59
        assert watch.works_as_before()
        clock.now += 2
        assert not watch.works_as_before()


@pytest.mark.parametrize(("cluster_id", "broker_id"), [("another", 1), ("cluster-id", 2)])
def test_br_01_a_root_of_somebody_else_is_no_root_that_works(broker_root, cluster_id, broker_id):
    with pytest.raises(InconsistentClusterIdException, match="belongs to broker 1 of cluster cluster-id"):
        probe_root(broker_root, cluster_id, broker_id)


@pytest.fixture
def cluster(root):
    home = StorageRoot.of(root).child("cluster")
    format_cluster(home, Config())
    return Cluster.open(home.uri)


def test_ol_02_a_root_is_made_ready_for_a_broker_that_starts(cluster, root):
    uri = f"{root}/broker-2"
    for _ in range(2):
        prepare_root(cluster, 2, uri)
        assert storage_error(StorageRoot.of(uri), cluster.cluster_id, 2) is None


@pytest.mark.parametrize("has_registered", [False, True])
def test_ol_02_a_root_that_does_not_work_is_the_end_only_of_a_broker_that_has_never_registered(
    cluster, root, has_registered
):
    uri = f"{root}/broker-2"
    prepare_root(cluster, 2, uri)
    if has_registered:
        row = BrokerRegistration(2, uri, None, 1, -1, False, None, "log", 0)
        BrokerTable.open_or_create(cluster.root, 2).register(lambda _: row)
    take_away(uri)
    with nullcontext() if has_registered else pytest.raises(KafkaStorageException, match=uri):
        prepare_root(cluster, 2, uri)


def test_ol_02_a_root_that_is_brought_back_works_again(broker_root):
    take_away(broker_root.uri)
    assert is_away(broker_root.uri)
    with pytest.raises(KafkaStorageException):
        probe_root(broker_root, "cluster-id", 1)
    for _ in range(2):
        bring_back(broker_root.uri)
        assert not is_away(broker_root.uri)
        probe_root(broker_root, "cluster-id", 1)
