"""The report of `simulate`."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol.rounds.quorum_round import QUORUM_RULES
from lakelog.verification.simulation.quorum.slot_explorer import SlotExplorer, SlotProcess
from lakelog.verification.simulation.rule_sabotages import SABOTAGES
from lakelog.verification.simulation.tiers import RULES, Caught, Simulated, figures, simulate

FIGURES = {
    "sabotaged_rules",
    "sabotaged_rules_caught",
    "histories",
    "violations",
    "steps_per_second",
    "seed",
    "seconds",
}


@pytest.mark.parametrize(("invariants", "is_good"), [(("a", "b"), True), (("a", None), False), ((), True)])
def test_a_run_is_good_if_every_sabotage_is_caught(invariants: tuple[str | None, ...], is_good: bool) -> None:
    caught = tuple(Caught(f"rule {n}", "is broken", name, 1, 1, 0.1) for n, name in enumerate(invariants))
    run = Simulated(RULES, 1, 10, 1_000, 0.5, (), caught, ())
    assert run.is_good is is_good
    found = figures(run)
    assert found.keys() >= FIGURES
    assert (found["sabotaged_rules"], found["steps_per_second"]) == (len(invariants), 2_000)
    assert found["sabotaged_rules_caught"] == sum(name is not None for name in invariants)


def test_histories_and_sabotages_are_counted_and_told() -> None:
    names = ("appends_are_not_fenced", "elects_anybody")
    tier = RULES._replace(sabotages={name: SABOTAGES[name] for name in names})
    told: list[str] = []
    run = simulate(3, 1, told.append, tier)
    assert told == ["histories"] * 3 + ["sabotages"] * 2
    assert [(sabotage.name, sabotage.invariant is not None) for sabotage in run.sabotages] == [(n, True) for n in names]
    assert (run.histories, run.found, run.is_good) == (3, (), True)


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_interleavings_of_a_tier_are_counted_and_a_violation_there_is_shown_with_its_moves(is_broken: bool) -> None:
    rules = replace(QUORUM_RULES, majority=lambda _: 1) if is_broken else QUORUM_RULES
    processes = SlotProcess("one", has_ballot_0=True), SlotProcess("other")
    explorations = {"two": lambda: SlotExplorer(processes if is_broken else processes[:1], rules=rules)}
    told: list[str] = []
    run = simulate(0, 1, told.append, RULES._replace(sabotages={}, explorations=explorations))
    assert told == ["explorations"]
    ((what, _, interleavings, violation),) = run.explored
    assert (what, run.is_good, violation is None) == ("two", not is_broken, not is_broken)
    assert (interleavings > 0) is not is_broken
    assert violation is None or "; one: creates 0 accept 0.one one; " in violation
    assert figures(run)["explored"][0]["violation"] == violation


def test_a_rare_sabotage_begins_with_the_history_that_is_known_to_catch_it() -> None:
    """The others begin with the first history of the run."""
    names = ("appends_are_not_fenced", "forgets_the_high_watermark")
    tier = RULES._replace(sabotages={name: SABOTAGES[name] for name in names}, sabotage_seeds=40)
    run = simulate(1, 3, tier=tier)
    assert [(caught.name, caught.first_seed) for caught in run.sabotages] == [(names[0], 3), (names[1], 66_415)]
    assert run.is_good
    assert [row["first_seed"] for row in figures(run)["sabotages"]] == [3, 66_415]


def test_rare_sabotages_are_sabotages() -> None:
    assert RULES.rare.keys() <= SABOTAGES.keys()
