"""The verb `simulate`: arguments, figures, exit status."""

import json
from pathlib import Path

import pytest

from jobs.simulate import main
from replication.simulation import report
from replication.simulation.history import run_seed
from replication.simulation.sabotage import SABOTAGES
from replication.simulation.shrink import shrink


@pytest.fixture
def _few_sabotages(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("appends_are_not_fenced", "elects_anybody")
    monkeypatch.setattr(report, "SABOTAGES", {name: SABOTAGES[name] for name in names})


@pytest.mark.parametrize("argv", [[], ["--seeds", "0"], ["--seeds", "x"], ["--seeds", "1", "--seed", "x"]])
def test_what_makes_no_sense_is_refused(argv: list[str]) -> None:
    assert main(argv) == 2


@pytest.mark.usefixtures("_few_sabotages")
def test_figures_are_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "simulated.json"
    assert main(["--seeds", "2", "--seed", "5", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["histories"], found["violations"], found["seed"]) == (2, 0, 5)
    assert (found["sabotaged_rules"], found["sabotaged_rules_caught"]) == (2, 2)
    shown = capsys.readouterr().out
    assert SABOTAGES["elects_anybody"].what in shown
    assert "steps_per_second" in shown


def test_an_uncaught_sabotage_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 history a rare one is not caught."""
    monkeypatch.setattr(report, "SABOTAGE_SEEDS", 1)
    monkeypatch.setattr(report, "SABOTAGES", {"rare": SABOTAGES["leads_under_any_broker_epoch"]})
    assert main(["--seeds", "1"]) == 1


@pytest.mark.usefixtures("_few_sabotages")
def test_a_violation_is_told_event_by_event_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = SABOTAGES["appends_are_not_fenced"].rules
    monkeypatch.setattr(report, "run_seed", lambda seed, _=None: run_seed(seed, rules))
    monkeypatch.setattr(report, "shrink", lambda history: shrink(history, rules))
    assert main(["--seeds", "1"]) == 1
    told = capsys.readouterr().err
    assert "seed 1: records_begin_under_an_open_epoch" in told
    assert "producer-" in told
