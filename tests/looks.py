"""Counts the look-ups of a store in memory."""

import time

from lakelog.verification.memory_root import MemoryStore, NoFaults


class Looks(NoFaults):
    """Counts the look-ups, as the faults of a store."""

    def __init__(self):
        self.reads = 0

    def read(self, uri):
        self.reads += 1

    def of(self, act):
        """The result of a call, and the look-ups that it took."""
        before = self.reads
        return act(), self.reads - before


def counted_store(clock):
    """A store in memory that counts its look-ups, under a clock that the test moves."""
    assert time.monotonic is clock
    with MemoryStore("looks", faults=Looks()).opened() as made:
        yield made
