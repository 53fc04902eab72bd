"""What is taken out of shipped storage is missed: an invariant of the stack tier does not hold without it."""

import pytest

from replication.simulation.stack.breaks import StackSabotage
from replication.simulation.stack.criticals import CRITICALS, OVERTAKEN
from replication.simulation.stack.history import run, shrink_stack
from replication.simulation.stack.sabotage import STACK_SABOTAGES, STORAGE
from replication.simulation.tiers import TIERS

SEEDS_THAT_CATCH = {
    "errors_are_taken_for_landed": 3,
    "state_is_written_over": 5,
    "changes_are_decided_once": 43,
    "files_are_deleted_at_once": 48,
    "any_log_is_the_one_of_before": 53,
    "broker_epochs_stand_still": 9,
    "doubtful_states_are_added_to": 30,
}  # the others are caught by one of the first
WORLDS = 6
SCHEDULES = {s.schedule.__name__: s.schedule for s in STACK_SABOTAGES.values() if s.schedule}


@pytest.mark.parametrize("name", [*CRITICALS, *STORAGE])
def test_what_is_broken_is_caught(name):
    """By the history that is known to; where what ships has moved on, by one of those that follow."""
    first = SEEDS_THAT_CATCH.get(name, 1)
    tries = range(first, first + (WORLDS if STACK_SABOTAGES[name].schedule else 60))
    caught = next((v for seed in tries if (v := run(seed, sabotage=STACK_SABOTAGES[name]).violation)), None)
    assert caught is not None
    assert "TypeError" not in caught.text


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_directed_history_finds_nothing_as_it_is_shipped(name):
    apply = OVERTAKEN if name == "tail_of_a_deposed_leader" else (lambda _: None)
    shipped = StackSabotage("nothing is broken", apply, SCHEDULES[name])
    assert [str(run(seed, sabotage=shipped).violation) for seed in range(1, WORLDS)] == ["None"] * (WORLDS - 1)


def test_a_broken_rule_is_put_right_again():
    """Each history begins with what ships."""
    before = run(3)
    assert run(3, sabotage=STACK_SABOTAGES["high_watermark_is_the_log_end"]).violation is not None
    assert run(3) == before


def test_a_failing_history_is_shrunk():
    sabotage = STACK_SABOTAGES["truncates_nothing"]
    failed = run(1, sabotage=sabotage)
    shortest = shrink_stack(failed, sabotage)
    assert shortest.violation.invariant == failed.violation.invariant
    assert set(shortest.events) < set(failed.events)
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink_stack(run(1, range(1)))


def test_each_tier_says_what_it_breaks():
    for tier in TIERS.values():
        words = [sabotage.what for sabotage in tier().sabotages.values()]
        assert len(words) == len(set(words)) > 20
