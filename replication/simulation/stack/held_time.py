"""Time as it passes for those who wait: a held clock moves on, and all that becomes due meanwhile happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakelog.replication.simulation.stack.one_thread import Clock


@dataclass
class _Repeated:
    work: Callable[[], object]
    seconds: float
    due_at: float


class Schedule:
    """What is done again and again. Nothing happens by itself: it does while somebody lets time pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all: list[_Repeated] = []

    def repeat(self, work: Callable[[], object], seconds: float) -> Callable[[], None]:
        """From now on `work` is done every so many seconds, until what this answers is called. What is due at the same
        time is done in the order in which it was given."""
        repeated = _Repeated(work, seconds, self._clock.now + seconds)
        self._all.append(repeated)
        return lambda: self._all.remove(repeated)

    def let_pass(self, seconds: float) -> None:
        """So much time passes."""
        until = self._clock.now + seconds
        while due := [repeated for repeated in self._all if repeated.due_at <= until]:
            first = min(due, key=lambda repeated: repeated.due_at)
            self._clock.now = max(self._clock.now, first.due_at)
            first.due_at = self._clock.now + first.seconds
            first.work()
        self._clock.now = max(self._clock.now, until)


class Passing:
    """Stands for an event that nobody sets: who waits for it lets time pass."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def wait(self, seconds: float) -> bool:
        self._schedule.let_pass(seconds)
        return False
