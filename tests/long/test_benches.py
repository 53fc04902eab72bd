"""One small run of each benchmark, with real brokers: rows are equal, all parts are there. No time is asserted."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from lakelog.verification.bench.data import DataSet
from lakelog.verification.bench.produce import measure_produce
from lakelog.verification.bench.produce_run import QUICK as QUICK_PRODUCE
from lakelog.verification.bench.profile import QUICK_PROFILE, measure_profile
from lakelog.verification.bench.profile_report import profile_figures
from lakelog.verification.bench.read import QUICK_READ, measure_read
from lakelog.verification.bench.replication import QUICK, SMALL, Bench

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


def test_a_profile_explains_real_sends(spark: "SparkSession", tmp_path: Path) -> None:
    """A few sends: real brokers, real micro-batches."""
    flame = tmp_path / "flame.svg"
    found = measure_profile(spark, QUICK_PROFILE, flame)
    assert found.is_explained
    for send, figures in zip(found.sends, profile_figures(found)["sends"], strict=True):
        assert json.dumps(figures)
        if len(send.parts) == len(send.seconds):
            assert sum(map(sum, (parts.values() for parts in send.parts))) == pytest.approx(sum(send.seconds), abs=0.01)
        made = Counter({kind: len(seconds) for kind, seconds in send.commits.items()})
        assert made["log", "append"] >= len(send.seconds)
        assert made["log", "fetched"] >= 1
        assert {"Python: client", "JVM: JIT compiler"} <= set(send.cpu_seconds)
    titles = "".join(ElementTree.fromstring(flame.read_text()).itertext())
    assert "clients.producer.Producer.send" in titles


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
