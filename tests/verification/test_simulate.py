"""The verb `simulate`: arguments, figures, exit status."""

import json
from pathlib import Path

import pytest

from lakelog.verification.simulation.history import run_seed
from lakelog.verification.simulation.rule_sabotages import SABOTAGES
from lakelog.verification.simulation.shrink import shrink
from lakelog.verification.simulation.tiers import RULES, TIERS, Tier
from lakelog.verification.verbs import simulate
from lakelog.verification.verbs.simulate import main


def use(monkeypatch: pytest.MonkeyPatch, tier: Tier) -> None:
    monkeypatch.setitem(simulate.TIERS, tier.name, lambda: tier)  # type: ignore[arg-type]


@pytest.fixture
def _few_sabotages(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("appends_are_not_fenced", "elects_anybody")
    use(monkeypatch, RULES._replace(sabotages={name: SABOTAGES[name] for name in names}))


NONSENSE = [[], ["--seeds", "0"], ["--seeds", "x"], ["--seeds", "1", "--seed", "x"], ["--seeds", "1", "--tier", "x"]]


@pytest.mark.parametrize("argv", NONSENSE)
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
    assert "first seed" in shown
    assert "steps_per_second" in shown


def test_an_uncaught_sabotage_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 history a rare one is not caught."""
    rare = {"rare": SABOTAGES["leads_under_any_broker_epoch"]}
    use(monkeypatch, RULES._replace(sabotages=rare, sabotage_seeds=1))
    assert main(["--seeds", "1"]) == 1


def test_a_violation_is_told_event_by_event_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = SABOTAGES["appends_are_not_fenced"].rules
    broken = RULES._replace(run=lambda seed, _: run_seed(seed, rules), shrink=lambda history: shrink(history, rules))
    use(monkeypatch, broken._replace(sabotages={}))
    assert main(["--seeds", "1"]) == 1
    told = capsys.readouterr().err
    assert "seed 1: records_begin_under_an_open_epoch" in told
    assert "producer-" in told


def test_the_tiers_have_the_same_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for name, of in list(TIERS.items()):
        tier = of()
        use(monkeypatch, tier._replace(sabotages=dict(list(tier.sabotages.items())[:1]), explorations={}))
        out = tmp_path / f"{name}.json"
        assert main(["--tier", name, "--seeds", "1", "--seed", "1", "--out", str(out)]) == 0
        found[name] = json.loads(out.read_text())
    assert found["rules"].keys() == found["stack"].keys() == found["quorum"].keys()
    assert {name: figures["tier"] for name, figures in found.items()} == {name: name for name in TIERS}
    assert "steps_per_second" in capsys.readouterr().out
