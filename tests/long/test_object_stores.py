"""Object stores of several makes: many processes append to one log, a cluster loses a leader, and rules are told."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakelog.jobs.quickstart import quickstart
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.config import Config
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.storage.delta.object_root import ObjectRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment_copy import copy_segment
from lakelog.replication.storage.store_probe import StoreProbe
from lakelog.verification.bench.counting_store import counting_store
from tests.long.azurite import azurite
from tests.long.cloud_storage import cloud_storage
from tests.processes import race, wait_until
from tests.storage.log.test_append_race import check, write
from tests.storage.log.test_segment_copy import written
from tests.storage.logs import P0, new_log

WRITERS = 4
PARTITIONS, SENDS = 3, 20
SLOW = {"PUT": 40, "GET": 25, "HEAD": 15, "LIST": 60, "POST": 40, "DELETE": 20}


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A bucket in a server process, and how to reach it."""
    if request.param == "azure":
        with azurite(tmp_path, "lake") as options:
            yield "az://lake", options
    elif request.param == "gcs":
        with cloud_storage(tmp_path, "lake") as options:
            yield "gs://lake", options
    else:
        with counting_store(tmp_path, SLOW if request.param == "slow s3" else {}) as (_, options):
            yield "s3://bucket", options


@pytest.mark.parametrize(
    ("store", "appends"), [("s3", 500), ("slow s3", 100), ("azure", 500), ("gcs", 500)], indirect=["store"]
)
def test_four_processes_append_to_one_log_without_a_pause(store, appends):
    uri, options = store
    log = new_log(StorageRoot.of(f"{uri}/raced/log", options), P0)
    writers = [(log.root.uri, writer, appends, options) for writer in range(1, WRITERS + 1)]
    check(log, race(write, *writers, timeout=1500), appends)


@pytest.mark.parametrize("store", ["s3", "azure", "gcs"], indirect=True)
def test_the_store_copies_a_segment_within_its_bucket(store, monkeypatch):
    uri, options = store
    source, target = (StorageRoot.of(f"{uri}/{name}", options) for name in ("a source", "a target"))
    segment = written(source)
    monkeypatch.setattr(ObjectRoot, "put", None)
    copied = copy_segment(source, segment, target)
    assert target.read(copied.name) == source.read(segment.name)


@pytest.mark.parametrize(("store", "signs"), [("s3", True), ("azure", True), ("gcs", False)], indirect=["store"])
def test_a_probe_asks_the_store_for_rules_by_a_signed_url(store, signs):
    """The credentials for Google's store here are no key that signs."""
    uri, options = store
    probe = StoreProbe(StorageRoot.of(f"{uri}/lake", options))
    probe.run()
    facts = probe.facts
    assert (len(facts.rules), facts.unanswered, not facts.unsigned) == (2 if signs else 0, "", signs)


@pytest.mark.parametrize("store", ["s3", "slow s3", "azure", "gcs"], indirect=True)
def test_a_cluster_that_loses_a_leader_has_each_record_once(spark, store):
    uri, options = store
    configs = {f"storage.{owner}.{name}": value for owner in ("cluster", 1, 2, 3) for name, value in options.items()}
    sent = {partition: [] for partition in range(PARTITIONS)}
    with LocalCluster(spark, f"{uri}/lake", configs=configs) as cluster:
        cluster.admin().create_topic("t", PARTITIONS, 3, configs={"min.insync.replicas": 2})
        producer = Producer(cluster.cluster_uri, acks="all", config=Config.from_properties(configs))
        for number in range(SENDS):
            if number == SENDS // 2:
                cluster.kill_broker(1)
            records = [{"partition": p, "value": f"{p}-{number}"} for p in sent]
            raise_first_error(producer.send("t", records, timeout_ms=120_000))
            for record in records:
                sent[record["partition"]].append(record["value"].encode())
        cluster.start_broker(1)
        admin = cluster.admin()
        wait_until(
            lambda: all(len(partition.isr) == 3 for partition in admin.describe_topic("t").partitions), "the ISRs", 120
        )
        fetched = cluster.consumer().fetch("t", dict.fromkeys(sent, 0))
        assert {p: found.records["value"].to_pylist() for p, found in fetched.items()} == sent


def test_the_quickstart_finds_every_record_in_four_object_stores(spark: SparkSession, tmp_path: Path) -> None:
    out, home = tmp_path / "figures.json", tmp_path / "kept"
    home.mkdir()
    assert quickstart(spark, str(out), home, 1_200, "s3") == 0
    figures = json.loads(out.read_text())
    assert (figures["records_committed"], figures["records_lost"], figures["replicas_identical"]) == (1_200, 0, True)
    stores = {path.name for path in home.glob("store-*") if path.is_dir()}
    assert stores == {"store-cluster", "store-1", "store-2", "store-3"}
