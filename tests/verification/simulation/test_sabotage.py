"""Every broken rule is caught, and the histories that caught the rare ones are kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakelog.verification.simulation.history import run_events
from lakelog.verification.simulation.history_events import NO_FAULTS, Event
from lakelog.verification.simulation.rule_sabotages import SABOTAGES, Sabotage
from lakelog.verification.simulation.rules import SHIPPED
from lakelog.verification.simulation.tiers import RULES, catch
from lakelog.verification.simulation.world_state import WorldSettings

KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))
SEEDS_THAT_CATCH = {
    "followers_append_in_any_role": 38,
    "sequences_are_ignored": 151,
    "everything_may_be_appended": 56,
    "truncates_in_any_role": 161,
    "high_watermark_from_any_row": 303,
    "high_watermark_is_the_log_end": 3,
    "high_watermark_without_pending": 264,
    "joins_below_the_epoch_start": 780,
    "joins_anywhere": 2,
    "joins_by_any_row": 161,
    "deletes_what_is_not_committed": 31,
    "unknown_is_won": 2,
    "truncates_to_the_high_watermark": 84,
    "truncates_nothing": 5,
    "restarts_at_the_leaders_end": 15,
    "row_before_the_truncation": 5,
    "says_so_before_it_is": 52,
    "leads_under_any_broker_epoch": 551,
    "claims_are_not_checked": 2,
    "acknowledges_at_once": 53,
    "acknowledges_by_offset": 7183,
    "reads_any_log": 945,
    "fetches_from_any_leader": 8,
    "controllers_do_not_claim": 5,
    "elects_anybody": 26,
    "prefers_anybody": 194,
    "the_isr_is_not_kept": 4,
    "overlooks_new_broker_epochs": 4,
    "reassigns_before_all_are_in_sync": 11,
    "deletes_before_brokers_have": 4,
    "decides_on_what_it_knew": 18,
    "drops_topics_first": 4,
    "takes_no_answer_for_done": 264,
    "takes_no_answer_for_appended": 37,
    "goes_on_after_removals": 22,
    "takes_no_answer_for_truncation": 1808,
    "follows_the_tail_over_gaps": 16,
    "sends_as_another": 979,
    **RULES.rare,
}  # the first seed catches the others


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_broken_rule_is_caught(name: str) -> None:
    """By the seed that is known to catch it or, if the rules have changed since, by one of the next."""
    invariant, _ = catch(RULES, name, SEEDS_THAT_CATCH.get(name, 1), at_most=700)
    assert invariant is not None


def test_a_break_that_shows_only_as_an_error_of_python_is_not_caught() -> None:
    """So that a sabotage which names what was renamed fails its test."""
    broken = Sabotage("a rule reads what is not there", replace(SHIPPED, place=lambda log, *_: log.renamed))
    assert catch(RULES._replace(sabotages={"broken": broken}), "broken", 1, at_most=2) == (None, 2)
    found = RULES.run(1, broken).violation
    assert found is not None
    assert found.invariant == NO_FAULTS


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_seeds_that_found_something(path: Path) -> None:
    """With the broken rule these events lead to a violation, with the shipped one they do not."""
    kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
    setting, events = WorldSettings(**kept["setting"]), [Event(*event) for event in kept["events"]]
    broken = run_events(setting, events, kept["is_calm_at_the_end"], SABOTAGES[kept["sabotage"]].rules)
    assert broken.violation is not None
    assert broken.violation.invariant == kept["invariant"]
    assert run_events(setting, events, kept["is_calm_at_the_end"]).violation is None


def test_what_is_broken_is_said() -> None:
    assert len(SABOTAGES) >= 8
    assert len({sabotage.what for sabotage in SABOTAGES.values()}) == len(SABOTAGES)
    assert {path.stem for path in KEPT} <= set(SABOTAGES)
