"""Makes a failing history as short as it gets: events are left out as long as the same invariant fails."""

from __future__ import annotations

from collections.abc import Sequence

from replication.simulation.events import Event
from replication.simulation.history import History, run_events
from replication.simulation.rules import SHIPPED, Rules

_RUNS = 2_000  # at most, of the history with some events left out


def shrink(failed: History, rules: Rules = SHIPPED) -> History:
    """The history with as few events as could be found, and its trace.

    Larger pieces are left out first, then smaller ones, down to single events, until nothing more can go.

    Raises ValueError if the history has not failed.
    """
    if failed.violation is None:
        raise ValueError("a history in which every invariant held has nothing to shrink")
    runs, size = 0, max(1, len(failed.events) // 2)
    shortest = _again(failed, failed.events, False, rules) or failed
    while size and runs < _RUNS:
        start, has_shrunk = len(shortest.events), False
        while start > 0 and runs < _RUNS:
            start = max(0, min(start, len(shortest.events)) - size)
            shorter = _without(shortest, start, size, rules)
            runs += 1
            if shorter is not None:
                shortest, has_shrunk = shorter, True
        size = size // 2 if size > 1 or not has_shrunk else 1
    return run_events(shortest.setting, shortest.events, shortest.is_calm_at_the_end, rules, traced=True)


def _without(history: History, start: int, size: int, rules: Rules) -> History | None:
    """The history without some events, if the same invariant fails."""
    events = (*history.events[:start], *history.events[start + size :])
    return _again(history, events, history.is_calm_at_the_end, rules)


def _again(history: History, events: Sequence[Event], is_calm: bool, rules: Rules) -> History | None:
    again = run_events(history.setting, events, is_calm, rules)
    names = [found.invariant for found in (history.violation, again.violation) if found is not None]
    return again if len(names) == 2 and names[0] == names[1] else None
