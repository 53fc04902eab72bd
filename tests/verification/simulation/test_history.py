"""Histories of the shipped rules: every invariant holds, and the same seed makes the same history."""

import pytest

from lakelog.verification.simulation.history import run_events, run_seed
from lakelog.verification.simulation.history_events import (
    CRASH,
    DROPPED,
    LANDED,
    LATE,
    PAUSE,
    RESUME,
    START,
    STEP,
    Event,
)
from lakelog.verification.simulation.rules import SHIPPED
from lakelog.verification.simulation.world import World
from lakelog.verification.simulation.world_state import WorldSettings

SEEDS = 200


@pytest.mark.parametrize("first", range(1, SEEDS, 50))
def test_the_shipped_rules_hold(first: int) -> None:
    failed = {seed: history.violation for seed in range(first, first + 50) if (history := run_seed(seed)).violation}
    assert not failed


def test_the_same_seed_makes_the_same_history() -> None:
    one, other = run_seed(7), run_seed(7)
    assert (one.fingerprint, one.events, one.steps) == (other.fingerprint, other.events, other.steps)
    assert run_seed(8).fingerprint != one.fingerprint


@pytest.mark.parametrize("seed", [4, 7])
def test_its_events_make_the_same_history_again(seed: int) -> None:
    drawn = run_seed(seed)
    again = run_events(drawn.setting, drawn.events, drawn.is_calm_at_the_end, traced=True)
    assert (again.fingerprint, again.steps) == (drawn.fingerprint, drawn.steps)
    assert again.trace


def test_histories_see_what_they_are_for() -> None:
    """Elections, truncations, ISR changes, zombies, deletions and acknowledgements all happen within a few
    histories."""
    wanted = ("leader@", "(truncate ", "(ISR of", "is claimed under", "removed", "are committed at", "has read",
              "overtaken",
              "never arrives", "gets no answer", "fenced@", "lost:", "found:", "leader -2@", "numbers is removed",
              "stands by: ControllerMoved", "answers AdminRequest")  # fmt: skip
    lines = ""
    for seed in range(1, 61):
        drawn = run_seed(seed)
        again = run_events(drawn.setting, drawn.events, False, traced=True)
        lines += "\n".join(again.trace)
    assert {word: word in lines for word in wanted} == dict.fromkeys(wanted, True)


def test_dr_01_records_are_deleted_in_some_histories() -> None:
    """Leaders delete and followers follow. A follower that ends below the new log start starts over."""
    drawn = [run_seed(seed) for seed in range(15, 500, 16)]
    assert all(history.setting.deletes_records for history in drawn)
    assert not [history.violation for history in drawn if history.violation]
    lines = "\n".join(
        line for h in drawn for line in run_events(h.setting, h.events, h.is_calm_at_the_end, traced=True).trace
    )
    wanted = ("(delete ", "(start ", "OffsetOutOfRange")
    assert {word: word in lines for word in wanted} == dict.fromkeys(wanted, True)


@pytest.mark.parametrize(
    "event",
    [
        Event("broker-9.1/main", STEP),
        Event("broker-1.7", CRASH),
        Event("broker-1.1/fetcher-3", STEP),
        Event("unknown", STEP),
    ],
)
def test_an_event_of_nobody_does_nothing(event: Event) -> None:
    world = World(WorldSettings(), SHIPPED)
    step = world.step
    world.apply(event)
    assert world.step == step


def test_a_paused_process_takes_no_step_and_a_crashed_one_is_gone() -> None:
    world = World(WorldSettings(), SHIPPED)
    world.apply(Event("broker-1.1", PAUSE))
    assert "broker-1.1/main" not in world.runnable()
    assert 1 not in world.live()
    world.apply(Event("broker-1", START))
    assert 1 in world.live()
    world.apply(Event("broker-1.1", RESUME))
    assert {"broker-1.1/main", "broker-1.2/main"} <= set(world.runnable())
    world.apply(Event("broker-1.1", CRASH))
    assert "broker-1.1" not in world.processes


@pytest.mark.parametrize(("fault", "version"), [(LANDED, 1), (DROPPED, 0)])
def test_a_commit_without_an_answer_has_landed_or_not(fault: str, version: int) -> None:
    world = World(WorldSettings(), SHIPPED)
    for event in (*[Event("broker-1.1/main")] * 2, Event("broker-1.1/main", STEP, fault)):
        world.apply(event)
    assert world.registry.newest == version


def test_a_late_answer_is_not_older_than_the_step_before() -> None:
    world = World(WorldSettings(), SHIPPED)
    for _ in range(3):
        world.apply(Event("broker-1.1/main"))
    assert world.registry.newest == 1
    world.apply(Event("broker-2.1/main"))
    world.apply(Event("broker-2.1/main", STEP, LATE, salt=0))
    for _ in range(2):
        world.apply(Event("broker-2.1/main"))
    assert world.registry.at(world.registry.newest)[2].broker_epoch == 1
