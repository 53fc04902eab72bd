"""Slows compaction down, so that producers and followers do not feel it. Kafka: `LogCleaner`'s `Throttler`."""

from __future__ import annotations

import time
from collections.abc import Callable

_SHARE_IN_USE, _SHARE_OF_A_BACKLOG = 0.05, 0.2  # of a core, while the log is in use
_BACKLOG = 1000  # segments: a log with more takes long to open
_IN_USE_SECONDS = 1.0  # a log is in use until its last commit is this old
_SHORTEST = 0.001  # a shorter wait would take longer than it says


class LogUse:
    """Tells whether a log is in use: whether its version has moved within the last second."""

    def __init__(self, version: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._version = version
        self._clock = clock
        self._seen = version()
        self._moved_at = float("-inf")

    def __call__(self) -> bool:
        """Whether producers or followers wait for the log now."""
        version, now = self._version(), self._clock()
        if version != self._seen:
            self._seen, self._moved_at = version, now
        return now - self._moved_at < _IN_USE_SECONDS


def share_in_use(segments: int) -> float:
    """The share of a core that compaction of a log with so many segments takes while the log is in use."""
    return _SHARE_IN_USE if segments <= _BACKLOG else _SHARE_OF_A_BACKLOG


class CompactionPace:
    """The pace of one compaction, which begins when this is made. Call it after each file that was read or written.

    It waits so long that no more than `bytes_per_second` are read and written (`log.cleaner.io.max.bytes.per.second`),
    and that compaction takes at most `share` of a core while `is_in_use`. `wait` receives seconds. [NA-04]
    """

    def __init__(
        self, bytes_per_second: int, is_in_use: Callable[[], bool], wait: Callable[[float], object], share: float,
        clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        self._rate = bytes_per_second
        self._is_in_use = is_in_use
        self._wait = wait
        self._share = share
        self._clock, self._cpu_clock = clock, cpu_clock
        self._resume()

    def _resume(self) -> None:
        self._resumed_at, self._cpu_before, self._size = self._clock(), self._cpu_clock(), 0

    def __call__(self, size: int) -> None:
        """Waits as long as `size` bytes and the time since the last wait demand."""
        took, cpu = self._clock() - self._resumed_at, self._cpu_clock() - self._cpu_before
        self._size += size
        shares = [self._size / self._rate]
        if self._is_in_use():
            shares.append(cpu / self._share)  # of CPU time: on a busy machine the work itself takes longer
        due = max(shares) - took
        if 0 < due < _SHORTEST:
            return  # the next wait makes up for it
        if due > 0:
            self._wait(due)
        self._resume()
