"""The brokers' registrations: an unreadable one does not hide others."""

import logging

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException, StaleBrokerEpochException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import format_cluster, storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerDirectory, BrokerTable
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import BROKERS
from lakelog.verification.memory_root import MemoryStore
from tests.clock import monotonic_clock


@pytest.fixture
def cluster(root):
    home = StorageRoot.of(root)
    for broker in (1, 2):
        register(home, broker)
    return home


def register(home, broker, **fields):
    row = {"rack": None, "broker_epoch": 1, "metadata_version": -1, "shutting_down": False,
           "storage_error": None, "log_table_id": "log", "log_version": 0, **fields}  # fmt: skip
    BrokerTable.open_or_create(home, broker).register(lambda _: BrokerRegistration(broker, f"/{broker}", **row))


def lose_files(home, broker):
    folder = home.child("brokers", str(broker))
    for name in folder.list():
        if name.endswith(".parquet"):
            folder.delete(name)


def beat(home, broker):
    BrokerTable.open(home, broker).heartbeat(1, "heartbeat")


def poll(directory, max_staleness=None):
    directory.refresh(max_staleness)
    return {broker: found.heartbeat for broker, found in directory.registrations.items()}


GARBAGE = {"offline_partitions": ("garbage",)}


def register_without_files(home, broker):
    register(home, broker, rack="r")
    lose_files(home, broker)


@pytest.mark.parametrize(
    "breaks", [lambda home: register_without_files(home, 2), lambda home: register(home, 2, **GARBAGE)],
    ids=["file", "row"],
)  # fmt: skip
def test_li_01_a_registration_that_cannot_be_read_says_nothing_new_and_hides_no_other(cluster, caplog, breaks):
    directory = BrokerDirectory(cluster)
    assert poll(directory) == {1: 1, 2: 1}
    beat(cluster, 2)
    breaks(cluster)
    beat(cluster, 1)
    with caplog.at_level(logging.WARNING):
        assert (poll(directory), poll(directory)) == ({1: 2, 2: 1}, {1: 2, 2: 1})
        assert poll(BrokerDirectory(cluster)) == {1: 2}, "who has never seen it knows nothing of it"
    told = [record.message for record in caplog.records]
    assert len(told) == 2, "once for each who looks, however often"
    assert all(words.startswith("the registration of broker 2 cannot be read: ") for words in told)


@pytest.mark.parametrize(("quiet_seconds", "max_staleness"), [(0.0, 5.0), (21.0, 15.0)], ids=["busy", "quiet"])
def test_bc_02_new_brokers_are_found_by_one_listing_for_all_in_an_object_store(
    monkeypatch, quiet_seconds, max_staleness
):
    clock, running = monotonic_clock(monkeypatch), ["others"]
    with MemoryStore("brokers", process=lambda: running[-1]).opened() as store:
        home = StorageRoot.of(f"{store.uri}/cluster")
        register(home, 1)
        running.append("this one")
        assert home.version_cache.max_staleness() > 0, "begins now"
        clock.now += quiet_seconds
        listed, names = [], store.names
        monkeypatch.setattr(store, "names", lambda folder: listed.append(folder) or names(folder))
        directories = BrokerDirectory(home), BrokerDirectory(home)
        assert [poll(directory, 1.0) for directory in directories] == [{1: 1}] * 2
        running.append("others")
        register(home, 2)
        running.append("this one")
        clock.now += max_staleness - 0.1
        assert [poll(directory, 1.0) for directory in directories] == [{1: 1}] * 2
        clock.now += 0.2
        assert [poll(directory, 1.0) for directory in directories] == [{1: 1, 2: 1}] * 2
        assert listed.count(home.child("brokers").uri) == 2
        register(home, 3)
        assert poll(directories[0]) == {1: 1, 2: 1, 3: 1}, "who does not poll sees them as they are now"


def test_bc_01_a_heartbeat_that_changes_nothing_needs_no_file(cluster):
    directory, table = BrokerDirectory(cluster), BrokerTable.open(cluster, 2)
    assert poll(directory) == {1: 1, 2: 1}
    lose_files(cluster, 2)
    table.heartbeat(1, "heartbeat")
    assert poll(directory) == {1: 1, 2: 2}


@pytest.mark.parametrize("broken", [(1,), (1, 2)])
def test_li_01_a_broken_file_is_no_trouble_of_the_store_though_it_be_the_only_one(cluster, broken):
    for broker in broken:
        lose_files(cluster, broker)
    assert poll(BrokerDirectory(cluster)) == {b: 1 for b in (1, 2) if b not in broken}


def test_li_01_a_store_that_cannot_be_read_at_all_is_an_error(cluster, monkeypatch):
    directory = BrokerDirectory(cluster)
    poll(directory)

    def away(*_):
        raise KafkaStorageException("503")

    monkeypatch.setattr(BrokerTable, "refresh", away)
    with pytest.raises(KafkaStorageException, match="503"):
        poll(directory)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (GARBAGE, "invalid literal"),
        ({"offline_partitions": ("id/x",)}, "invalid literal"),
        ({"broker_id": 3}, "it is of broker 3"),
    ],
)
def test_ol_01_a_row_that_makes_no_sense_is_named_and_its_broker_may_replace_it(cluster, caplog, fields, words):
    directory = BrokerDirectory(cluster)
    table = StateTable.open_at(cluster.child("brokers", "1"), BROKERS)
    table.update({"who": "test"}, lambda rows: [{**rows[0], **fields}])
    assert poll(directory) == {2: 1}
    assert f"the row of broker 1 makes no sense: {words}" in caplog.text
    register(cluster, 1)
    assert poll(directory) == {1: 3, 2: 1}


def test_ol_01_a_counter_that_is_no_number_is_named(cluster, caplog, monkeypatch):
    broken = BrokerRegistration(1, "/1", None, 1, "many", False, None, "log", 0)
    monkeypatch.setattr(BrokerTable, "registration", broken)
    assert poll(BrokerDirectory(cluster)) == {}
    assert "the row of broker 1 makes no sense: metadata_version is 'many', no integer" in caplog.text


@pytest.mark.parametrize("cluster_roots", [1, 3])
def test_bc_01_a_registration_is_removed_only_as_it_was_read(tmp_path, cluster_roots):
    """Also where heartbeats are signs of life, and no commits. The process that was registered is fenced."""
    uri = ",".join(str(tmp_path / f"cluster-{number}") for number in range(cluster_roots))
    home = storage_root(uri, "cluster", Config())
    format_cluster(home, Config())
    register(home, 4, broker_epoch=7)
    broker = BrokerTable.open(home, 4)
    directory = BrokerDirectory(home)
    directory.refresh()
    broker.heartbeat(7, "heartbeat")
    assert (directory.unregister(4, {"who": "test"}), directory.unregistered) == (False, frozenset())
    directory.refresh()
    assert directory.unregister(4, {"who": "test"})
    assert directory.unregister(4, {"who": "test"}), "it is idempotent"
    assert (directory.registrations, directory.unregistered) == ({}, {4})
    assert (poll(BrokerDirectory(home)), BrokerTable.open(home, 4).registration) == ({}, None)
    broker.refresh()
    with pytest.raises(StaleBrokerEpochException, match="epoch 7 is fenced"):
        broker.heartbeat(7, "heartbeat")
    register(home, 4, broker_epoch=9)
    assert (list(poll(directory)), directory.unregistered) == ([4], frozenset())
