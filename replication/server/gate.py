"""Where a broker may be frozen or ended: between any two of its steps, as a signal does it to a process."""

from __future__ import annotations

import threading


class BrokerKilled(Exception):
    """The broker has been ended: whoever carries out its steps stops here."""


class Gate:
    """Every step of a broker passes through it. For brokers that share a process; others get signals."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._killed = False

    def pass_through(self) -> None:
        """Waits while the broker is paused. Raises BrokerKilled once it has been killed."""
        self._open.wait()
        if self._killed:
            raise BrokerKilled

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
        """Lets it go on."""
        self._open.set()

    def kill(self) -> None:
        """Ends it at its next step, also while it is frozen."""
        self._killed = True
        self._open.set()
