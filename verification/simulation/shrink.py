"""Makes a failing history as short as possible: it leaves out events as long as the same invariant fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lakelog.verification.simulation.history import History, run_events
from lakelog.verification.simulation.history_events import Event, Violation
from lakelog.verification.simulation.rules import SHIPPED, Rules

_RUNS = 2_000  # the most runs of shortened histories
_Event = TypeVar("_Event")


def shrink(failed: History, rules: Rules = SHIPPED) -> History:
    """The history with the fewest events that it found, with its trace.

    Raises ValueError if the history has not failed.
    """
    is_calm = failed.is_calm_at_the_end

    def breaks(events: Sequence[Event], is_calm: bool = is_calm) -> Violation | None:
        return run_events(failed.setting, events, is_calm, rules).violation

    if is_same(failed.violation, breaks(failed.events, False)):
        is_calm = False
    events = shorten(failed.events, failed.violation, lambda events: breaks(events, is_calm), _RUNS)
    return run_events(failed.setting, events, is_calm, rules, traced=True)


def shorten(
    events: Sequence[_Event], failed: Violation | None, run: Callable[[Sequence[_Event]], Violation | None], runs: int
) -> Sequence[_Event]:
    """The fewest of these events that it found in `runs` runs and that break the same invariant. It leaves out larger
    pieces first, then smaller ones, down to single events.

    Raises ValueError if nothing has failed.
    """
    if failed is None:
        raise ValueError("a history in which every invariant held has nothing to shrink")
    left, size, done = events, max(1, len(events) // 2), 0
    while size and done < runs:
        start, has_shrunk = len(left), False
        while start > 0 and done < runs:
            start = max(0, min(start, len(left)) - size)
            shorter = [*left[:start], *left[start + size :]]
            done += 1
            if is_same(failed, run(shorter)):
                left, has_shrunk = shorter, True
        size = size // 2 if size > 1 or not has_shrunk else 1
    return left


def is_same(failed: Violation | None, again: Violation | None) -> bool:
    """Whether both broke the same invariant."""
    return failed is not None and again is not None and failed.invariant == again.invariant
