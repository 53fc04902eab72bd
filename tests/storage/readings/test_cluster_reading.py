"""The rows of one kind of table of a cluster: brokers that are dead, lost or never seen hide no other."""

import shutil
import time

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterIdException, KafkaStorageException
from lakelog.replication.storage.readings.cluster_reading import OF_BROKERS, ClusterReading, _options_in_environment
from lakelog.schemas.views import VIEWS
from lakelog.schemas.views.readings import READINGS
from tests.clients.world import World
from tests.storage.logs import P0, fill


@pytest.fixture
def world(root):
    """Broker 1 leads P0 with eight records in two batches; broker 2 has published nothing."""
    made = World(root)
    fill(made.logs[1], P0, 3, 5)
    made.say(8)
    return made


def rows(world, name, broker=None, as_of=None):
    reading = ClusterReading(world.uri, Config(), as_of)
    return [row for table in reading.read(name, broker) for row in table.to_pylist()]


@pytest.mark.parametrize("name", READINGS)
def test_a_table_is_read_with_the_columns_that_it_is_said_to_have(world, name):
    reading = ClusterReading(world.uri, Config())
    tables = list(reading.read(name, 1 if name in OF_BROKERS else None))
    assert tables
    assert all(table.schema.equals(READINGS[name].arrow) for table in tables)
    reading.check(name)


def test_every_table_that_a_view_needs_or_uses_can_be_read():
    assert {name for view in VIEWS.values() for name in (*view.needs, *view.uses)} == set(READINGS)


def test_batches_are_those_of_the_footers(world):
    found = sorted(rows(world, "batches", 1), key=lambda row: row["base_offset"])
    assert [(r["broker_id"], r["base_offset"], r["last_offset"], r["error"]) for r in found] == [
        (1, 0, 2, None), (1, 3, 7, None),
    ]  # fmt: skip
    world.logs[1].root.delete(found[0]["file"])
    lost, whole = sorted(rows(world, "batches", 1), key=lambda row: row["error"] is None)
    assert "is gone" in lost["error"]
    assert (lost["topic"], whole["base_offset"]) == (None, 3)


def test_li_01_a_root_that_is_gone_has_no_rows_and_its_broker_says_why(world):
    shutil.rmtree(world.roots[2].uri)
    assert [r["broker_id"] for r in rows(world, "replicas", 1)] == [1]
    assert rows(world, "replicas", 2) == rows(world, "batches", 2) == []
    whole, lost = rows(world, "brokers")
    assert (whole["broker_id"], whole["root_error"]) == (1, None)
    assert lost["root_error"].startswith(
        f"InconsistentClusterIdException: there is no root of broker 2 at {lost['root']}"
    )


def test_li_01_a_registration_that_cannot_be_read_hides_no_other(world):
    folder = world.cluster.root.child("brokers", "2")
    for name in folder.list():
        if name.endswith(".parquet"):
            folder.delete(name)
    assert [r["broker_id"] for r in rows(world, "brokers")] == [1]


def test_bc_01_a_broker_that_was_unregistered_has_no_row_and_hides_no_other(world):
    world.cluster.refresh_brokers()
    assert world.cluster.broker_directory.unregister(2, {"who": "test"})
    assert [r["broker_id"] for r in rows(world, "brokers")] == [1]
    assert rows(world, "replicas", 2) == []


def test_a_time_before_a_table_was_there_is_refused_but_for_tables_of_brokers_one_is_enough(world):
    before = time.time() - 3600
    for name in ("topics", "metadata", "metadata_changes", "replicas", "batches"):
        with pytest.raises(KafkaStorageException, match="does not reach back to"):
            ClusterReading(world.uri, Config(), before).check(name)
    assert rows(world, "brokers", as_of=before) == [], "no broker had registered"
    ClusterReading(world.uri, Config(), before).check("brokers")
    world.cluster.root.child("brokers", "1").delete("_delta_log/00000000000000000000.json")
    with pytest.raises(KafkaStorageException, match="brokers/1: its history does not reach back"):
        ClusterReading(world.uri, Config(), before).check("brokers")


def test_replicas_have_a_history_as_long_as_one_root_can_be_read(world):
    shutil.rmtree(world.roots[1].uri)
    ClusterReading(world.uri, Config(), time.time()).check("replicas")
    shutil.rmtree(world.roots[2].uri)
    with pytest.raises(InconsistentClusterIdException, match="no root of broker 1"):
        ClusterReading(world.uri, Config(), time.time()).check("replicas")


def test_a_folder_without_a_cluster_is_refused(root):
    with pytest.raises(InconsistentClusterIdException, match="there is no cluster"):
        list(ClusterReading(root, Config()).read("topics"))


def test_workers_get_the_storage_options_of_the_environment(monkeypatch):
    monkeypatch.setenv("LAKELOG_STORAGE_2_AWS_REGION", "eu")
    monkeypatch.setenv("LAKELOG_STORAGE_CLUSTER_AWS_ENDPOINT_URL", "http://localhost:1")
    monkeypatch.setenv("LAKELOG_STORAGE_TWO", "no root of anybody")
    found = _options_in_environment()
    config = Config.from_properties({"storage.2.aws.region": "us", "storage.2.aws.key": "k"})
    whole = Config(storage={**config.storage, **found})
    assert whole.storage_options(2, {}) == {"AWS_REGION": "eu", "AWS_KEY": "k"}
    assert whole.storage_options("cluster", {}) == {"AWS_ENDPOINT_URL": "http://localhost:1"}
