"""The fetch states of one fetcher, shared by its own threads and those of its broker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakelog.replication.protocol.fetch_state import FetchStates, InitialFetchState, PartitionFetchState
from lakelog.replication.protocol.record_batch import TopicIdPartition

_MULTIPLIER = 2
_JITTER = 0.2  # so that not all fetchers return at the same time to a root that has failed

# The bound, as a multiple of the first backoff. With default settings it is half of replica.lag.time.max.ms, so that a
# wait alone takes no follower out of the ISR.
_MOST = 5


def backoff_ms(first_ms: float, failures: int, drawn: float) -> float:
    """Milliseconds to wait after 1 or more `failures` in a row: twice as long after each, with jitter, at most 5 times
    `first_ms`. `drawn` is a random number from 0 to 1. Kafka: `ExponentialBackoff`. [FT-13]"""
    grown = min(_MULTIPLIER ** min(failures - 1, _MOST), _MOST)
    jitter = 1 + _JITTER * (2 * drawn - 1)
    return first_ms * min(grown * jitter, _MOST)


class SharedFetchStates(FetchStates):
    """`FetchStates` under locks. If a partition is fetched here, `remove` waits for the end of the round's writes.

    Each further failure of a partition in a row makes its delay longer, until a fetch succeeds. `draw` returns a random
    number from 0 to 1, and is called once a fetcher: so fetchers wait for different times, and partitions that have
    failed together return together.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, draw: Callable[[], float] = random.random
    ) -> None:  # fmt: skip
        super().__init__(clock)
        self._drawn = draw()
        self._failures: dict[TopicIdPartition, int] = {}  # in a row
        self._lock = threading.Lock()
        self._writing = threading.RLock()

    def all(self) -> dict[TopicIdPartition, PartitionFetchState]:
        with self._lock:
            return super().all()

    def assign(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> bool:
        with self._lock:
            return super().assign(partitions)

    @contextmanager
    def held(self, removals: int) -> Iterator[None]:
        with self._writing, super().held(removals):
            yield

    def remove(self, partitions: Iterable[TopicIdPartition]) -> None:
        here = [partition for partition in partitions if partition in self._states]
        if here:
            with self._writing, self._lock:
                super().remove(here)
                for partition in here:
                    self._failures.pop(partition, None)

    def delay(self, partition: TopicIdPartition, error: str | None, backoff_ms: float) -> None:
        if error is not None:
            with self._lock:
                backoff_ms = self._grown(partition, backoff_ms)
        super().delay(partition, error, backoff_ms)

    def _grown(self, partition: TopicIdPartition, first_ms: float) -> float:
        """The delay in ms. An error while the partition waits already is no further failure: nothing was fetched."""
        state = self._states.get(partition)
        if state is not None and state.delayed_until is None:
            self._failures[partition] = self._failures.get(partition, 0) + 1
        return backoff_ms(first_ms, self._failures.get(partition, 1), self._drawn)

    def advanced(self, partition: TopicIdPartition, offset: int, leader_high_watermark: int | None = None) -> None:
        with self._lock:
            self._failures.pop(partition, None)
        super().advanced(partition, offset, leader_high_watermark)

    def _move(
        self, partition: TopicIdPartition, transition: Callable[[PartitionFetchState], PartitionFetchState]
    ) -> bool:
        with self._lock:
            return super()._move(partition, transition)
