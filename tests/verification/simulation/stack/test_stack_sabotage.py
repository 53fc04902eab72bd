"""Each sabotage of the stack tier is caught: it breaks an invariant."""

import pytest

from lakelog.verification.simulation.history_events import NO_FAULTS
from lakelog.verification.simulation.rule_sabotages import SABOTAGES
from lakelog.verification.simulation.stack.breaks import StackSabotage, of_rules
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.schedules import rare
from lakelog.verification.simulation.stack.stack_history import run, shrink_stack
from lakelog.verification.simulation.stack.stack_sabotages import (
    DIRECTED_WITHOUT_CHAIN,
    FETCHER_GOES_ON,
    SHARED,
    STACK_SABOTAGES,
    WITHOUT_CHAIN,
)
from lakelog.verification.simulation.tiers import TIERS

SEEDS_THAT_CATCH = {
    "changes_are_decided_once": 6,
    "state_is_written_over": 4,
    "errors_are_taken_for_landed": 12,
    "compaction_spoils_a_row": 7,
    "compaction_drops_a_batch": 7,
    "nobody_is_behind": 8,
    "newest_records_go": 18,
    "fails_without_a_new_epoch": 1,
    "notes_of_older_generations_count": 2,
}  # one of the first 60 seeds catches the others
WORLDS = 4
SCHEDULES = {s.schedule.__name__: s.schedule for s in STACK_SABOTAGES.values() if s.schedule}


@pytest.mark.parametrize("name", [name for name in STACK_SABOTAGES if name not in SHARED])
def test_what_is_broken_is_caught(name):
    """By the history that is known to catch it or, if shipped code has changed since, by one of the next. Broken rules
    are left to the tests of the tier of the rules, and to `lakelog simulate --tier stack`."""
    first = SEEDS_THAT_CATCH.get(name, 1)
    tries = range(first, first + (WORLDS if STACK_SABOTAGES[name].schedule else 60))
    caught = next((v for seed in tries if (v := run(seed, sabotage=STACK_SABOTAGES[name]).violation)), None)
    assert caught is not None
    assert caught.invariant != NO_FAULTS


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_directed_history_finds_nothing_as_it_is_shipped(name):
    apply = FETCHER_GOES_ON if SCHEDULES[name] is rare.tail_of_a_deposed_leader else (lambda _: None)
    assert violation(apply, SCHEDULES[name]) is None


@pytest.mark.parametrize("name", sorted({schedule.__name__ for schedule in DIRECTED_WITHOUT_CHAIN.values()}))
def test_a_directed_history_finds_nothing_either_where_the_chain_says_nothing(name):
    """So these histories catch the broken rule, not the missing chain."""
    assert violation(WITHOUT_CHAIN, SCHEDULES[name]) is None


@pytest.mark.parametrize("name", DIRECTED_WITHOUT_CHAIN)
def test_the_chain_stops_what_a_broken_rule_lets_through(name):
    """At most, shipped code raises an error."""
    found = violation(of_rules(SABOTAGES[name].rules), DIRECTED_WITHOUT_CHAIN[name])
    assert found is None or found.invariant == NO_FAULTS


def violation(apply, schedule):
    return run(1, sabotage=StackSabotage("as `apply` says", apply, schedule)).violation


def test_all_that_the_tier_of_the_rules_breaks_is_broken_here():
    assert SHARED.keys() == SABOTAGES.keys()
    assert {name: sabotage.what for name, sabotage in SHARED.items()} == {n: s.what for n, s in SABOTAGES.items()}


def test_a_broken_rule_is_put_right_again():
    """Each history begins with shipped code."""
    seed = SEEDS_THAT_CATCH["fails_without_a_new_epoch"]
    before = run(seed)
    assert run(seed, sabotage=STACK_SABOTAGES["fails_without_a_new_epoch"]).violation is not None
    assert run(seed) == before


def test_a_failing_history_is_shrunk():
    sabotage = STACK_SABOTAGES["fails_without_a_new_epoch"]
    failed = run(SEEDS_THAT_CATCH["fails_without_a_new_epoch"], sabotage=sabotage)
    shortest = shrink_stack(failed, sabotage)
    assert shortest.violation.invariant == failed.violation.invariant
    assert set(shortest.events) < set(failed.events)
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink_stack(run(1, range(1)))


def test_each_tier_says_what_it_breaks():
    for tier in TIERS.values():
        words = [sabotage.what for sabotage in tier().sabotages.values()]
        assert len(words) == len(set(words)) > 5


def test_a_sabotage_of_what_does_not_ship_is_refused():
    with Changes() as changes, pytest.raises(ValueError, match="is not there in what ships"):
        of_rules(SABOTAGES["claims_are_not_checked"].rules)(changes)
