"""Gives each partition to a fetcher; there is one fetcher for each source broker and fetcher id.

Kafka: `AbstractFetcherManager`, `ReplicaFetcherManager`. [FM-01 to FM-09]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from lakelog.replication.protocol.fetch_state import FetchStates, InitialFetchState, PartitionFetchState, fetcher_id
from lakelog.replication.protocol.record_batch import TopicIdPartition

# How long a broker waits for a fetcher to end before it goes on: the fetcher's source may hang.
_SHUTDOWN_SECONDS = 1.0


class BrokerIdAndFetcherId(NamedTuple):
    """The key of a fetcher. [FM-05]"""

    broker_id: int
    fetcher_id: int


class SourceBroker(NamedTuple):
    """The root URI and epoch of a source broker. A new process may have another root at the same URI. [FM-05]"""

    root: str
    broker_epoch: int


class FetcherThread(Protocol):
    """The part of a fetcher that the manager uses. `states`: the fetch states of its partitions. Once they are removed
    there, nothing more of them is appended."""

    states: FetchStates

    def start(self) -> None:
        """Begins to fetch, and returns at once."""

    def add_partitions(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> None:
        """Adds partitions to fetch. A partition that it has under the same leader epoch stays as it is."""

    def shutdown(self, seconds: float | None = None) -> None:
        """Ends fetching for good; nothing more is appended. Waits for the end at most `seconds`, by default as long as
        a call of the store may take."""


class FetcherFactory(Protocol):
    """Makes a fetcher for a source broker."""

    def __call__(self, key: BrokerIdAndFetcherId, root: str) -> FetcherThread:
        """A fetcher that has not been started. `root` is the URI of the source broker's root."""


class ReplicaFetcherManager:
    """All fetchers of one broker. Kafka names it "ReplicaFetcherManager on broker N". [BR-02]"""

    def __init__(
        self,
        num_replica_fetchers: int,
        create_fetcher: FetcherFactory,
        source_of: Callable[[int], SourceBroker | None],
    ) -> None:
        self._num_replica_fetchers = num_replica_fetchers
        self._create_fetcher = create_fetcher
        self._source_of = source_of
        self._lock = threading.RLock()
        self._fetchers: dict[BrokerIdAndFetcherId, FetcherThread] = {}
        self._sources: dict[BrokerIdAndFetcherId, SourceBroker] = {}

    def fetchers(self) -> dict[BrokerIdAndFetcherId, FetcherThread]:
        """All fetchers by their keys."""
        with self._lock:
            return dict(self._fetchers)

    def add_fetcher_for_partitions(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> None:
        """Adds each partition to the fetcher of its leader, and starts a new fetcher if there is none. [FM-04]

        It leaves out a partition whose leader is not registered. The broker asks again once the brokers have changed.
        """
        grouped: dict[BrokerIdAndFetcherId, dict[TopicIdPartition, InitialFetchState]] = {}
        for partition, initial in partitions.items():
            number = fetcher_id(initial.topic, partition.partition, self._num_replica_fetchers)
            grouped.setdefault(BrokerIdAndFetcherId(initial.leader, number), {})[partition] = initial
        for key, group in grouped.items():
            source = self._source_of(key.broker_id)
            if source is not None:
                self._fetcher(key, source).add_partitions(group)

    def _fetcher(self, key: BrokerIdAndFetcherId, source: SourceBroker) -> FetcherThread:
        """The fetcher of a key. It is replaced if its source broker has a new root or epoch. [FM-05]"""
        with self._lock:
            fetcher = self._fetchers.get(key)
        if fetcher is not None and self._sources[key] == source:
            return fetcher
        if fetcher is not None:
            fetcher.shutdown(_SHUTDOWN_SECONDS)
        fetcher = self._create_fetcher(key, source.root)
        with self._lock:
            self._fetchers[key], self._sources[key] = fetcher, source
        fetcher.start()
        return fetcher

    def remove_fetcher_for_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Removes partitions from their fetchers. An idle fetcher runs until `shutdown_idle_fetchers`. [FM-07]"""
        removed = list(partitions)
        for fetcher in self.fetchers().values():
            fetcher.states.remove(removed)

    def shutdown_idle_fetchers(self) -> None:
        """Stops and removes the fetchers without partitions. [FM-08]"""
        idle = {key: fetcher for key, fetcher in self.fetchers().items() if len(fetcher.states) == 0}
        for key, fetcher in idle.items():
            fetcher.shutdown(_SHUTDOWN_SECONDS)
            with self._lock:
                del self._fetchers[key], self._sources[key]

    def fetch_states(self) -> dict[TopicIdPartition, PartitionFetchState]:
        """The fetch states of all followed partitions that a fetcher has."""
        return {p: state for fetcher in self.fetchers().values() for p, state in fetcher.states.all().items()}

    def close_all_fetchers(self) -> None:
        """Stops every fetcher. [BR-04]"""
        fetchers = self.fetchers()
        for fetcher in fetchers.values():
            fetcher.shutdown()
        with self._lock:
            self._fetchers.clear()
