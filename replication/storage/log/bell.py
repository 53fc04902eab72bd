"""A named pipe by which a thread of a broker wakes the Python process of its query's source, on the same machine.

The source itself looks at no table: the broker's process shares its looks and the commits that it knows, and a process
beside it would have to ask the store for each of them once more.
"""

from __future__ import annotations

import os
import select
import struct
from contextlib import suppress

STOPS = -(2**63)  # instead of a version: the query is about to be stopped, and its source waits no more
_VERSION = struct.Struct("<q")  # small enough that a pipe takes all of it or nothing
_MANY = 8192


class Bell:
    """One end of the pipe. What rang before the other end opened is not lost."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # for both ends: neither sees the other one's end

    @classmethod
    def make(cls, path: str) -> Bell:
        """Makes the pipe. Raises OSError."""
        os.mkfifo(path, 0o600)
        return cls(path)

    def ring(self, version: int) -> None:
        """Tells of a version of the leader's log. A full pipe has enough to wake the source."""
        with suppress(BlockingIOError):
            os.write(self._pipe, _VERSION.pack(version))

    def wait(self, seconds: float) -> int | None:
        """The version that was told of last, and none that was told of before; None if there is none for so long. It
        is `STOPS` if the bell has rung for it at all, because the versions after it wake nobody."""
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        if not waiting.poll(round(seconds * 1000)):
            return None
        told = os.read(self._pipe, _MANY * _VERSION.size)
        versions = [version for (version,) in _VERSION.iter_unpack(told)]
        return STOPS if STOPS in versions else versions[-1]

    def close(self) -> None:
        """Closes this end."""
        os.close(self._pipe)
