"""One small run of each benchmark, with real brokers: rows are equal, all parts are there. No time is asserted."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lakelog.verification.bench.measuring import DataSet
from lakelog.verification.bench.produce import QUICK as QUICK_PRODUCE
from lakelog.verification.bench.produce import measure_produce
from lakelog.verification.bench.read import QUICK_READ, measure_read
from lakelog.verification.bench.replication import QUICK, SMALL, Bench
from lakelog.verification.bench.requests import RequestsPlan, measure_requests, requests_figures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_both_followers_have_the_rows_of_the_leader(spark: "SparkSession") -> None:
    """A round with few records: real brokers, a real plain stream. There is time for one round only."""
    steps: list[str] = []
    sizes = DataSet(3_000, 100), DataSet(2_000, 100)
    found = Bench(spark, replace(QUICK, data_sets=sizes, rounds=9, seconds=0.0), steps.append).run()
    assert [(each.data_set, each.rows_equal) for each in found] == [(each, True) for each in (*sizes, SMALL)]
    both = dict.fromkeys(("lakelog", "plain stream"), 1)
    assert [{name: len(seconds) for name, seconds in each.seconds.items()} for each in found] == [
        {**both, "file copy": 1},
        {**both, "file copy": 1},
        dict.fromkeys(both, QUICK.small_commits),
    ]
    assert found[0].bytes > found[1].bytes > 0
    assert steps == ["round 1 of 9"]


def test_what_was_sent_is_committed(spark: "SparkSession") -> None:
    found = measure_produce(spark, QUICK_PRODUCE)
    assert found.rows_equal
    assert [len(sends.seconds) for sends in found.sends] == [1, 2, 2, 1, 1, 1, 1, 1]
    assert all(len(sends.seconds) == len(sends.plain_seconds) for sends in found.sends)


def test_every_way_gives_the_same_rows(spark: "SparkSession") -> None:
    found = measure_read(spark, QUICK_READ)
    assert found.rows_equal
    assert found.records == QUICK_READ.each.records
    assert [len(seconds) for seconds in found.seconds.values()] == [QUICK_READ.rounds] * 7


def test_the_requests_of_a_small_cluster_are_counted(spark: "SparkSession") -> None:
    """Real brokers, a real store in a process of its own."""
    (found,) = measure_requests(
        spark, RequestsPlan([1], [2], seconds=5, sends=1, configs={"broker.session.timeout.ms": 6000})
    )
    assert found.rows_equal
    assert {what.table for what in found.sent} >= {"log"}
    assert {what.kind for what in found.idle} >= {"GET", "PUT"}, "looks, and a heartbeat every 2 s"
    assert json.dumps(requests_figures([found]))


def test_what_is_sent_to_processes_is_committed(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "lakelog.jobs", "bench", "processes", "--sends", "1", "--seconds", "1"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["rows_equal"] is True
    assert [word in done.stdout for word in ("start of all processes", "acknowledged send", "idle")] == [True] * 3


def test_a_follower_has_the_rows_of_its_leader_with_any_number_of_workers(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "lakelog.jobs", "bench", "replication", "--workers", "1,2", "--quick"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert (figures["rows_equal"], list(figures["seconds_by_workers"])) == (True, ["1", "2"])
