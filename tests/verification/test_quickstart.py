"""The whole quickstart on its first flights: every figure is computed from the tables."""

import json
import re

import pyarrow.compute as pc

from lakelog.jobs.quickstart import CONFIGS, TOPIC, ClusterReport, flights, quickstart
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import Config
from lakelog.replication.protocol.log_retention import KEEP_ALL


def test_the_flights_are_all_there_with_their_null_keys():
    table = flights()
    assert table.num_rows == 336_776
    assert table["key"].null_count == 2_512
    first = json.loads(table["value"][0].as_py())
    assert (first["tailnum"], first["dep_time"], first["dest"]) == ("N14228", 517, "IAH")
    cancelled = table.filter(pc.is_null(table["key"]))["value"][0].as_py()
    assert json.loads(cancelled)["tailnum"] is None


def test_dr_01_the_flights_are_kept_however_old_they_are():
    """They are of 2013, and retention goes by the timestamps of records: the kept cluster is there to be queried."""
    newest = pc.max(flights()["timestamp"]).as_py()
    kept = Config().topic(CONFIGS).retention_ms
    assert newest.year < 2015
    assert kept == KEEP_ALL


def test_the_quickstart_finds_every_record_on_every_replica(spark, tmp_path, capsys):
    out, home = tmp_path / "figures.json", tmp_path / "kept cluster"
    home.mkdir()
    assert quickstart(spark, str(out), home, limit=2_000) == 0
    figures = json.loads(out.read_text())
    counts = {name: figures[name] for name in ("records_sent", "records_produced", "records_committed")}
    assert counts == dict.fromkeys(counts, 2_000)
    assert (figures["records_lost"], figures["records_duplicated"]) == (0, 0)
    assert figures["replicas_identical"] is True
    assert sum(partition["high_watermark"] for partition in figures["partitions"]) == 2_000
    assert figures["failover_ms"] > 0
    epochs = [r.leader_epoch for r in AdminClient(str(home / "cluster")).describe_topic(TOPIC).partitions]
    assert max(epochs) > 0, "leaders have changed"
    assert "Most flights" in capsys.readouterr().out
    damaged = ClusterReport(spark, str(home / "cluster"), TOPIC)
    half = spark.createDataFrame(flights().slice(0, 2_500).select(["key", "value"]))
    assert damaged.lost_and_duplicated(half) == (500, 0), "it notices what is missing"
    less = spark.createDataFrame(flights().slice(0, 1_900).select(["key", "value"]))
    assert damaged.lost_and_duplicated(less) == (0, 100), "and what is too much"


def test_the_quickstart_finds_every_record_when_a_region_is_deleted(spark, tmp_path, capsys):
    out, home = tmp_path / "figures.json", tmp_path / "kept"
    home.mkdir()
    assert quickstart(spark, str(out), home, limit=2_000, loses_region=True) == 0
    figures = json.loads(out.read_text())
    assert (figures["records_sent"], figures["records_lost"], figures["records_duplicated"]) == (2_000, 0, 0)
    assert figures["replicas_identical"] is True
    lost = figures["lost_region"]
    left = {f"region-{number}" for number in {1, 2, 3} - {lost}}
    assert {path.name for path in home.glob("region-*")} == left
    assert all(lost not in partition["isr"] and partition["leader"] != lost for partition in figures["partitions"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"Region {lost} was deleted" in said
    assert "2,000 records were acknowledged; in the 2 regions left 0 are missing, and 0 are there twice" in said


def test_the_quickstart_draws_its_failover(spark, tmp_path):
    out, picture = tmp_path / "figures.json", tmp_path / "failover.svg"
    assert quickstart(spark, str(out), None, limit=None, picture=picture) == 0
    figures = json.loads(out.read_text())
    assert figures["records_sent"] == figures["records_committed"] > 0
    assert (figures["records_lost"], figures["records_duplicated"]) == (0, 0)
    drawn = picture.read_text()
    assert f"{figures['records_sent']:,} records in sends of 50, acks=all, three replicas: 0 lost, 0 doubled" in drawn
    assert f"sends are acknowledged again after {figures['failover_ms'] / 1000:.1f} s" in drawn
    assert len(set(re.findall(r"broker \d leads", drawn))) >= 2
