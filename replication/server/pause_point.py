"""Freezes or ends a broker between any two of its steps, as a signal freezes or ends a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class BrokerKilled(Exception):
    """The broker has been killed: the thread that carries out its steps stops here."""


class PausePoint:
    """Every step of a broker passes through it. It serves brokers that share a process; others get signals.

    It also notes when one watched thread last passed, so that others can tell whether the thread hangs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watched: threading.Thread | None = None
        self._passed_at = clock()
        self._open = threading.Event()
        self._open.set()
        self._killed = False

    def pass_through(self) -> None:
        """Waits while the broker is paused. Raises BrokerKilled once it has been killed."""
        self._open.wait()
        if self._killed:
            raise BrokerKilled
        if threading.current_thread() is self._watched:
            self._passed_at = self._clock()

    def watch(self, thread: threading.Thread) -> None:
        """Watches this thread from now on; see `seconds_since_passed`."""
        self._watched, self._passed_at = thread, self._clock()

    def seconds_since_passed(self) -> float:
        """Seconds since the watched thread last passed, or since `watch` if it has not passed yet."""
        return self._clock() - self._passed_at

    @property
    def is_killed(self) -> bool:
        """Whether the broker has been killed."""
        return self._killed

    @property
    def is_paused(self) -> bool:
        """Whether the broker is frozen."""
        return not self._open.is_set()

    def pause(self) -> None:
        """Freezes the broker at its next step."""
        self._open.clear()

    def resume(self) -> None:
        """Lets the broker go on."""
        self._open.set()

    def kill(self) -> None:
        """Ends the broker at its next step, also while it is frozen."""
        self._killed = True
        self._open.set()
