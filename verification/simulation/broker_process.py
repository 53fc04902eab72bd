"""One process of a broker: its memory and its threads. A crash loses both; the tables stay."""

from __future__ import annotations

from typing import Any

from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.verification.simulation.actor import Actor
from lakelog.verification.simulation.broker_memory import BrokerMemory
from lakelog.verification.simulation.replica_manager import SimulatedReplicaManager
from lakelog.verification.simulation.stage import Stage
from lakelog.verification.simulation.tables import VersionedTable


class SimulatedBrokerProcess(BrokerMemory):
    """A broker may have several at a time: older ones are zombies, and must find out by themselves."""

    def __init__(self, world: Stage, name: str, broker_id: int) -> None:
        super().__init__(world, name, broker_id)
        self._main = SimulatedReplicaManager(self)

    def threads(self) -> list[str]:
        """Names of its threads, as events have them."""
        return [self._main.name, *(fetcher.name for fetcher in self._main.fetchers.values())]

    def thread(self, name: str) -> Actor | None:
        """The thread of this name; None if it has ended."""
        if name == "main":
            return self._main
        return self._main.fetchers.get(int(name.removeprefix("fetcher-")))

    @property
    def is_about_to_commit(self) -> VersionedTable[Any] | None:
        """The table for which its main thread has a decided change that is not committed yet."""
        return self._main.is_about_to_commit

    def fetch_state(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """How far a followed partition has come; None if no fetcher has it."""
        states = (fetcher.states.get(partition) for fetcher in self._main.fetchers.values())
        return next((state for state in states if state is not None), None)

    def stop(self) -> None:
        """The end of the process, in the middle of whatever it was doing."""
        for thread in (self._main, *self._main.fetchers.values()):
            thread.stop()
