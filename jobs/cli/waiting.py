"""Waiting: for a condition, with a deadline, and for a signal to stop."""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakelog.replication.errors import TimeoutException


def wait_until(condition: Callable[[], bool], what: str = "", seconds: float = math.inf, pause: float = 0.2) -> None:
    """Returns once the condition holds. Raises TimeoutException, saying `what`, if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutException(f"not within {seconds:.0f} s: {what}")
        let_pass(pause)


def let_pass(seconds: float) -> None:
    """Waits. `scenario --mode simulated` replaces `threading` here, so that only its simulated clock moves."""
    threading.Event().wait(seconds)


def exit_when_signalled() -> None:
    """From now on SIGTERM, and SIGHUP unless it is ignored, end this process as an exception does: what it has started
    must not outlive it. A second one is ignored: it would end the clean-up."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]

    def leave(number: int, _: object) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in numbers:
        signal.signal(number, leave)


def stop_signals() -> Callable[[], bool]:
    """Catches SIGTERM and SIGINT, and returns a function: whether one was received. A second signal ends the process.

    The handler touches no lock: it runs in the main thread, which may hold it.
    """
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return lambda: bool(received)


@contextmanager
def until_signalled() -> Iterator[Callable[[], bool]]:
    """A block in which `stop_signals` catches the signals. After it, their handlers are those of before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop_signals()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
