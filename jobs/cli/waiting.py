"""Waits for a condition, with a deadline, or for a signal to stop."""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakelog.replication.errors import TimeoutException


def wait_until(condition: Callable[[], bool], what: str = "", seconds: float = math.inf, pause: float = 0.2) -> None:
    """Returns once the condition holds. Raises TimeoutException after `seconds`; `what`: its text."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutException(f"not within {seconds:.0f} s: {what}")
        let_pass(pause)


def let_pass(seconds: float) -> None:
    """Waits. `scenario --mode simulated` replaces `threading` here, so that only its simulated clock moves."""
    threading.Event().wait(seconds)


def exit_when_signalled() -> None:
    """From now on SIGTERM, and SIGHUP unless it is ignored, end this process as an exception does, so that it ends what
    it has started. A second signal is ignored: it would interrupt that clean-up."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]

    def leave(number: int, _: object) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in numbers:
        signal.signal(number, leave)


def stop_signals() -> Callable[[], bool]:
    """Catches SIGTERM and SIGINT. Returns a function that tells whether one was received. A second signal ends the
    process.

    The handler takes no lock: it runs in the main thread, which may hold that lock.
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
    """A block in which `stop_signals` catches the signals, and whose value is its function. The block must end itself
    once that returns true. After the block, the earlier handlers are back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop_signals()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
