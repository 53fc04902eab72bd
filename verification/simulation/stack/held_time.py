"""Simulated time: during a wait the clock moves on, and repeated work runs when it is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakelog.verification.simulation.stack.one_thread import Clock


@dataclass
class _Repeated:
    work: Callable[[], object]
    seconds: float
    due_at: float


class Schedule:
    """Repeated work. It runs only while time passes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all: list[_Repeated] = []

    def repeat(self, work: Callable[[], object], seconds: float) -> Callable[[], None]:
        """Runs `work` every `seconds` until the returned function is called. Work that is due at the same time runs in
        the order of these calls."""
        repeated = _Repeated(work, seconds, self._clock.now + seconds)
        self._all.append(repeated)
        return lambda: self._all.remove(repeated)

    def let_pass(self, seconds: float) -> None:
        """Moves the clock on by `seconds`, and runs the work that becomes due."""
        until = self._clock.now + seconds
        while due := [repeated for repeated in self._all if repeated.due_at <= until]:
            first = min(due, key=lambda repeated: repeated.due_at)
            self._clock.now = max(self._clock.now, first.due_at)
            first.due_at = self._clock.now + first.seconds
            first.work()
        self._clock.now = max(self._clock.now, until)


class Passing:
    """Replaces an event that is never set during a wait. Waiting for it lets time pass."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def wait(self, seconds: float) -> bool:
        self._schedule.let_pass(seconds)
        return False

    def set(self) -> None:
        """Does nothing: the only thread does not wait now."""

    def clear(self) -> None:
        """Has nothing to forget."""
