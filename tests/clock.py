"""A clock that the test moves."""

import time


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def monotonic_clock(monkeypatch):
    """Puts a clock in the place of the monotonic one."""
    monkeypatch.setattr(time, "monotonic", made := Clock())
    return made
