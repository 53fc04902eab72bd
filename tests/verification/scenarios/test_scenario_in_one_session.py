"""Whole scenario scripts in one Spark session."""

import json
from pathlib import Path

from lakelog.jobs.cli.root_names import S3
from lakelog.verification.scenarios.run import clusters_in, run_script
from lakelog.verification.scenarios.script import Script, read_script

SCRIPTS = Path(__file__).parents[2] / "scenarios"


def script_named(name: str) -> Script:
    return read_script(str(SCRIPTS / f"{name}.yaml"))


def test_a_script_runs_in_one_session(spark, tmp_path: Path) -> None:
    script = script_named("slow_follower")
    result = run_script(clusters_in(spark), script, tmp_path / "kept")
    assert result.ok, [(r.step.line, str(r.step), r.outcome.fault) for r in result.steps if not r.ok]
    told = json.loads(json.dumps(result.as_json()))
    assert (told["name"], told["ok"], [step["step"] for step in told["steps"]]) == (
        script.name, True, [step.name for step in script.steps],
    )  # fmt: skip
    assert {"ok", "at_ms", "took_ms", "saw"} <= set.intersection(*(set(step) for step in told["steps"]))
    assert {type(step["first_ack_ms"]) for step in told["steps"] if step["step"] == "produce"} == {int}
    assert [told["history"][0][name] for name in ("leader", "leader_epoch", "partition_epoch")] == [1, 0, 0]
    assert sorted(told["history"][-1]["isr"]) == [1, 2, 3]
    assert (tmp_path / "kept" / "cluster" / "metadata").is_dir()


def test_a_script_runs_with_three_cluster_roots(spark, tmp_path: Path) -> None:
    result = run_script(clusters_in(spark), script_named("two_of_three_cluster_roots"), tmp_path / "kept")
    assert result.ok, [(r.step.line, str(r.step), r.outcome.fault) for r in result.steps if not r.ok]
    for number in (1, 2, 3):
        assert (tmp_path / "kept" / f"cluster-{number}" / "metadata").is_dir()


def test_a_script_gets_the_store_and_the_cluster_roots_that_it_needs(spark, tmp_path: Path) -> None:
    result = run_script(clusters_in(spark), script_named("cluster_roots_in_stores"), tmp_path / "kept")
    assert result.ok, [(r.step.line, str(r.step), r.outcome.fault) for r in result.steps if not r.ok]
    stores = {path.name for path in (tmp_path / "kept").glob("store-*") if path.is_dir()}
    assert stores == {f"store-{name}" for name in ("cluster-1", "cluster-2", "cluster-3", 1, 2, 3)}


def test_any_script_runs_with_three_cluster_roots(spark, tmp_path: Path) -> None:
    result = run_script(clusters_in(spark, cluster_roots=3), script_named("slow_follower"), tmp_path / "kept")
    assert result.ok, [(r.step.line, str(r.step), r.outcome.fault) for r in result.steps if not r.ok]
    assert not (tmp_path / "kept" / "cluster").exists()
    assert result.history


def test_a_script_runs_where_each_root_is_in_a_store_of_its_own(spark, tmp_path: Path) -> None:
    script = script_named("lost_root")
    result = run_script(clusters_in(spark, S3), script, tmp_path / "kept")
    assert result.ok, [(r.step.line, str(r.step), r.outcome.fault) for r in result.steps if not r.ok]
    (away,) = (r.outcome for r in result.steps if r.step.name == "take_storage_away")
    assert (away.saw, away.words) == ({"root_is_away": True}, "broker 1: s3://bucket-1/broker-1")
    assert sorted(result.as_json()["history"][-1]["isr"]) == [1, 2, 3]
    stores = {path.name for path in (tmp_path / "kept").glob("store-*") if path.is_dir()}
    assert stores == {"store-cluster", "store-1", "store-2", "store-3"}


def test_a_step_that_comes_out_otherwise_ends_its_script(spark, tmp_path: Path) -> None:
    text = """
name: fails
brokers: 1
steps:
  - create_topic: {topic: t, assignment: {0: [1]}}
  - start: 1
  - kill: 1
"""
    heard = []
    (tmp_path / "fails.yaml").write_text(text)
    script = read_script(str(tmp_path / "fails.yaml"))
    result = run_script(clusters_in(spark), script, tell=heard.append)
    assert (result.ok, len(result.steps), [r.ok for r in heard]) == (False, 2, [True, False])
    fault = "BrokerNotAvailableException: start: broker 1 is running, it must be stopped"
    assert result.as_json()["steps"][1]["fault"] == fault
