"""`lakelog scenario --mode simulated`: every shipped script in memory, with a simulated clock."""

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs.launch.launcher import VERBS, launch
from lakelog.replication.controller.predict import predict
from lakelog.verification.scenarios.predictions import AS_PREDICTED
from lakelog.verification.scenarios.run import SIMULATED, clusters_of, run_script
from lakelog.verification.scenarios.script import read_script
from lakelog.verification.verbs.scenario import main

ALL = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
SCRIPTS = [path for path in ALL if not read_script(str(path)).has_several_roots]
HEAD = "name: n\nsteps:\n  - create_topic: {topic: t, assignment: {0: [1, 2, 3]}}\n"


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise AssertionError("it starts Spark")

    monkeypatch.setattr("lakelog.jobs.launch.session.job_session", refuse)


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    return str(path)


def simulated(path: str | Path) -> dict[str, Any]:
    with clusters_of(SIMULATED) as make:
        told: dict[str, Any] = json.loads(json.dumps(run_script(make, read_script(str(path))).as_json()))
    return told


simulated_once = cache(simulated)  # for tests that only look at what a script of ours told


# Kills and stops whose outcome is not compared with a prediction, and why.
NOT_COMPARED = {
    "cluster_root_gone": ["kill 3 at line 12", "kill 2 at line 19", "kill 3 at line 26"],  # the cluster root is away
    "cluster_root_of_another": ["kill 2 at line 14"],  # the same
    "cluster_root_older": ["kill 3 at line 24"],  # the same
    "deleted_records": ["kill 1 at line 19"],  # another broker starts at once
    "one_in_sync": ["kill 2 at line 9"],  # another broker is killed at once, and both are predicted then
    "unclean_election": ["kill 2 at line 9"],  # the same
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_of_ours_comes_out_as_written_and_each_kill_as_predicted(path: Path) -> None:
    told = simulated_once(path)
    assert told["ok"], [step for step in told["steps"] if not step["ok"]]
    lost = [step for step in told["steps"] if step["step"] in ("kill", "stop")]
    predicted = [outcome["of"] for outcome in told["predictions"]]
    assert predicted == [
        f"{s['step']} {b} at line {s['line']}" for s in lost if (b := s["arguments"]["broker"]) in (1, 2, 3)
    ]
    others = [outcome["of"] for outcome in told["predictions"] if outcome["outcome"] != AS_PREDICTED]
    assert others == NOT_COMPARED.get(path.stem, [])


def test_a_kill_that_has_another_outcome_than_was_predicted_fails_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lakelog.jobs.admin.prediction.predict", lambda context, *_: predict(context)
    )  # nothing is lost
    steps = "  - wait: {topic: t, isr: [1, 2, 3]}\n  - kill: 1\n"
    out = tmp_path / "out.json"
    assert main([written(tmp_path, HEAD + steps), "--mode", "simulated", "--out", str(out)]) == 1
    words = "t-0 has leader 2 and ISR [2, 3], predicted were leader 1 and ISR [1, 2, 3]"
    assert f"n: kill 1 at line 5: {words}" in capsys.readouterr().out
    told = json.loads(out.read_text())
    assert (told["ok"], all(step["ok"] for step in told["steps"])) == (False, True)
    assert told["predictions"] == [{"of": "kill 1 at line 5", "outcome": words, "partitions": 1}]


@pytest.mark.parametrize("name", ["deposed_leader", "throttled_reassignment"])
def test_a_script_comes_out_the_same_each_time(name: str) -> None:
    (path,) = (path for path in SCRIPTS if path.stem == name)
    assert simulated(path) == simulated_once(path)


def test_figures_are_of_the_held_clock(tmp_path: Path) -> None:
    """The real one is back afterwards."""
    real = time.monotonic
    told = simulated(written(tmp_path, HEAD + "  - sleep: 10\n"))
    assert told["steps"][-1]["took_ms"] == 10_000
    assert time.monotonic is real


def test_a_broker_that_is_out_of_the_isr_has_been_away_for_as_long_as_the_settings_say(tmp_path: Path) -> None:
    steps = "  - wait: {topic: t, isr: [1, 2, 3]}\n  - pause: 3\n  - produce: {topic: t, acks: 1}\n"
    steps += "  - wait: {topic: t, isr: [1, 2]}\n  - wait: {topic: t, offline: [3]}\n"
    told = simulated(written(tmp_path, HEAD + steps))
    paused, _, out, dead = (step["at_ms"] for step in told["steps"][-4:])
    assert 3000 <= out - paused <= 4600
    assert 5500 <= dead - paused <= 6300


def test_a_script_may_have_five_brokers(tmp_path: Path) -> None:
    text = "name: n\nbrokers: 5\nsteps:\n  - create_topic: {topic: t, assignment: {0: [5, 4]}}\n  - stop: 5\n"
    told = simulated(written(tmp_path, text + "  - wait: {topic: t, leader: 4, isr: [4]}\n"))
    assert told["ok"]
    assert [step["saw"].get("running") for step in told["steps"]] == [None, [1, 2, 3, 4], None]


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ("wait: {topic: t, leader: 2, timeout_s: 5}", "leader is 1, expected 2"),
        ("consume: {topic: t, expect_values: [m0]}", "nothing, expected m0"),
        ("start: 1", "BrokerNotAvailableException: start: broker 1 is running, it must be stopped"),
    ],
)
def test_a_step_that_does_not_see_what_it_expects_fails_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, step: str, fault: str
) -> None:
    monkeypatch.setattr("lakelog.verification.scenarios.script_steps._CONSUME_SECONDS", 5)
    out = tmp_path / "out.json"
    path = written(tmp_path, HEAD + f"  - {step}\n  - kill: 1\n")
    assert main([path, "--mode", "simulated", "--out", str(out)]) == 1
    told = json.loads(out.read_text())
    assert (told["ok"], [s["ok"] for s in told["steps"]]) == (False, [True, False])
    assert told["steps"][1]["fault"] == fault
    assert f"line 4: {fault}" in capsys.readouterr().out


def test_keep_is_refused_in_simulated_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    assert main([str(SCRIPTS[0]), "--mode", "simulated", "--keep", str(kept)]) == 2
    assert "--keep: nothing of --mode simulated can be kept, its clusters lie in memory" in capsys.readouterr().err
    assert not kept.exists()


def test_a_store_is_refused_in_simulated_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SCRIPTS[0]), "--mode", "simulated", "--store", "s3"]) == 2
    assert "--store s3: it needs --mode embedded or processes" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [["--mode", "simulated"], ["--mode=simulated"]])
def test_simulated_mode_starts_no_spark(mode: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that is one takes over its process: there would be no return."""
    assert launch(["scenario", written(tmp_path, HEAD), *mode]) == 0
    assert "✓" in capsys.readouterr().out
    assert launch(["scenario", "x.yaml", *mode, "--master", "local"]) == 2
    assert "scenario starts no Spark" in capsys.readouterr().err


def test_the_other_modes_start_spark() -> None:
    verb = VERBS["scenario"]
    assert verb.starts_spark(["simulated", "a.yaml", "--mode", "processes"])
    assert verb.starts_spark(["--mode", "embedded", "x.yaml"])
    assert verb.starts_spark([])


def test_several_cluster_roots_are_not_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    several = [str(path) for path in ALL if path not in SCRIPTS]
    assert len(several) == 6
    for arguments in ([several[0]], [str(SCRIPTS[0]), "--cluster-roots", "3"]):
        assert main([*arguments, "--mode", "simulated"]) == 2
        assert "several cluster roots need --mode embedded or processes" in capsys.readouterr().err
