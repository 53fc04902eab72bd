"""One history of the stack tier: a storm of events under a seed, then calm, then the check of the invariants."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from lakelog.verification.simulation.events import Violation
from lakelog.verification.simulation.shrink import shorten
from lakelog.verification.simulation.stack.breaks import StackSabotage
from lakelog.verification.simulation.stack.invariants import check, check_files, check_that_it_goes_on
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.rates import drawn
from lakelog.verification.simulation.stack.step_invariants import violation_of
from lakelog.verification.simulation.stack.world import StackWorld

_RUNS = 100  # at most, to shrink a history
_FOR_DAYS = 4  # every fourth seed runs for days, until all unneeded files must be gone
EVENTS = 30  # of a storm; other events may happen in the middle of each


class StackHistory(NamedTuple):
    """A run and its result. `violation` is None if every invariant held. `faults` counts the faults by kind."""

    seed: int
    events: tuple[int, ...]
    steps: int
    violation: Violation | None
    trace: tuple[str, ...]
    faults: Mapping[str, int]

    @property
    def about(self) -> str:
        """The events and the faults of the history, as text."""
        return f"events {', '.join(map(str, self.events)) or 'of a schedule'}; faults {dict(self.faults)}"


def shrink_stack(failed: StackHistory, sabotage: StackSabotage | None = None) -> StackHistory:
    """The shortest history found that still fails. Raises ValueError if the given one did not fail."""

    def again(events: Sequence[int]) -> Violation | None:
        return run(failed.seed, events, sabotage).violation

    return run(failed.seed, shorten(failed.events, failed.violation, again, _RUNS), sabotage)


def run(seed: int, events: Sequence[int] = range(EVENTS), sabotage: StackSabotage | None = None) -> StackHistory:
    """Runs a world under one seed: a storm, or the schedule of a sabotage, then calm, then the check."""
    with _quiet(), Changes() as changes:
        if sabotage is not None:
            sabotage.apply(changes)
        schedule = sabotage.schedule if sabotage else None
        world, violation = None, None
        try:
            world = StackWorld(seed, changes, drawn(seed)) if schedule is None else StackWorld(seed, changes)
            if schedule is None:
                world.storm(events)
            else:
                world.calm()
                schedule(world)
            world.calm()
            check(world)
            check_that_it_goes_on(world)
            if schedule is None and seed % _FOR_DAYS == 0:
                check_files(world)
        except (Exception, Violation) as error:
            violation = violation_of(error).with_traceback(None)
        steps, trace = (world.faults.looks, world.trace) if world else (0, [])
        faults = dict(world.faults.counts) if world else {}
        return StackHistory(seed, () if schedule else tuple(events), steps, violation, tuple(trace), faults)


@contextmanager
def _quiet() -> Iterator[None]:
    """Switches the logging of faults off, and seeds the random numbers that shipped code draws."""
    before, level = random.getstate(), logging.root.manager.disable
    random.seed(0)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        random.setstate(before)
        logging.disable(level)
