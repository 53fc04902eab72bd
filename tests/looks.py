"""Counts the look-ups of a store in memory."""

from lakelog.replication.storage.memory.store import NoFaults


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
