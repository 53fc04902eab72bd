"""The fetch states of one fetcher, for its query's thread and those of its broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.fetch_states import FetchStates
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.steps import InitialFetchState


class SharedFetchStates(FetchStates):
    """`FetchStates` under locks. `remove` waits for the block in which a round writes, but only if it has one of the
    partitions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
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
        here = [partition for partition in partitions if self.get(partition)]
        if here:
            with self._writing, self._lock:
                super().remove(here)

    def _move(
        self, partition: TopicIdPartition, transition: Callable[[PartitionFetchState], PartitionFetchState]
    ) -> bool:
        with self._lock:
            return super()._move(partition, transition)
