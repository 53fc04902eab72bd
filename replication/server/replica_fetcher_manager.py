"""Which fetcher follows which partitions: one for each (source broker, fetcher id).

Kafka: `AbstractFetcherManager`, `ReplicaFetcherManager`. [FM-01 to FM-09]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.fetcher_id import fetcher_id
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.steps import InitialFetchState

# How long a broker that goes on to lead waits for a fetcher that it needs no more: the source may hang.
_SHUTDOWN_SECONDS = 1.0


class BrokerIdAndFetcherId(NamedTuple):
    """The key of a fetcher. [FM-05]"""

    broker_id: int
    fetcher_id: int


class SourceBroker(NamedTuple):
    """A process of a broker, and its root: another process may have found another root at the same URI. [FM-05]"""

    root: str
    broker_epoch: int


class FetcherThread(Protocol):
    """What the manager asks of a fetcher."""

    def start(self) -> None:
        """Begins to fetch, and returns at once."""

    def add_partitions(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> None:
        """Takes partitions over; those it has under the same epoch stay as they are."""

    def remove_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Stops to fetch partitions; when this returns, nothing more of them is appended."""

    def partition_count(self) -> int:
        """Number of partitions."""

    def fetch_state(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """How far a partition has come; None if it is not here."""

    def shutdown(self, seconds: float | None = None) -> None:
        """Ends fetching for good; nothing more is appended. Waits for the end, but no longer than `seconds`."""


class FetcherFactory(Protocol):
    """Makes a fetcher for a source broker."""

    def __call__(self, key: BrokerIdAndFetcherId, root: str) -> FetcherThread:
        """A fetcher that has not been started."""


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
        """The fetchers there are."""
        with self._lock:
            return dict(self._fetchers)

    def add_fetcher_for_partitions(self, partitions: Mapping[TopicIdPartition, InitialFetchState]) -> None:
        """Hands each partition to the fetcher of its leader, made and started if there is none. [FM-04]

        A partition whose leader is not registered is left out: it is asked for again when brokers have moved.
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
        """The fetcher of a key; one whose source broker has moved, or begun anew, is replaced. [FM-05]"""
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
        """Every fetcher drops these partitions; one that is left with none runs on until it is found idle. [FM-07]"""
        gone = list(partitions)
        for fetcher in self.fetchers().values():
            fetcher.remove_partitions(gone)

    def shutdown_idle_fetchers(self) -> None:
        """Stops and forgets the fetchers without partitions. [FM-08]"""
        idle = {key: fetcher for key, fetcher in self.fetchers().items() if fetcher.partition_count() == 0}
        for key, fetcher in idle.items():
            fetcher.shutdown(_SHUTDOWN_SECONDS)
            with self._lock:
                del self._fetchers[key], self._sources[key]

    def fetch_state(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """How far a followed partition has come; None if no fetcher has it."""
        states = (fetcher.fetch_state(partition) for fetcher in self.fetchers().values())
        return next((state for state in states if state is not None), None)

    def close_all_fetchers(self) -> None:
        """Stops every fetcher. [BR-04]"""
        fetchers = self.fetchers()
        for fetcher in fetchers.values():
            fetcher.shutdown()
        with self._lock:
            self._fetchers.clear()
