"""One process of a broker: what it holds in memory, and its threads. A crash takes all of it; the tables stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.simulation.actor import Actor
from lakelog.replication.simulation.fetcher import SimulatedFetcher
from lakelog.replication.simulation.replica_manager import SimulatedReplicaManager
from lakelog.replication.simulation.tables import BrokerRow, VersionedTable

if TYPE_CHECKING:
    from lakelog.replication.simulation.world import World


class SimulatedBrokerProcess:
    """A broker may have several at a time: older ones are zombies, and must find out by themselves."""

    def __init__(self, world: World, name: str, broker_id: int) -> None:
        self.world = world
        self.name = name
        self.broker_id = broker_id
        self.is_paused = False
        self.is_shutting_down = False
        self.epoch = -1
        self.log_table = world.logs[broker_id]
        self.log_version, self.log = 0, self.log_table.at(0)
        self.replica_table = world.replicas[broker_id]
        self.told: Mapping[TopicIdPartition, Replica] = {}
        self.metadata: Mapping[TopicIdPartition, PartitionRegistration] = {}
        self.registry: Mapping[int, BrokerRow] = {}
        self.hosted: dict[TopicIdPartition, HostedPartition] = {}
        self.fetchers: dict[int, SimulatedFetcher] = {}
        self._main = SimulatedReplicaManager(self)

    def threads(self) -> list[str]:
        """Names of its threads, as events have them."""
        return [self._main.name, *(fetcher.name for fetcher in self.fetchers.values())]

    def thread(self, name: str) -> Actor | None:
        """A thread by its name; None if it has ended."""
        if name == "main":
            return self._main
        return self.fetchers.get(int(name.removeprefix("fetcher-")))

    @property
    def is_about_to_commit(self) -> VersionedTable[Any] | None:
        """What its main thread has looked at, decided on and not committed yet."""
        return self._main.is_about_to_commit

    def fetch_state(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """How far a followed partition has come; None if no fetcher has it."""
        states = (fetcher.states.get(partition) for fetcher in self.fetchers.values())
        return next((state for state in states if state is not None), None)

    def stop(self) -> None:
        """The end of the process, in the middle of whatever it was doing."""
        for thread in (self._main, *self.fetchers.values()):
            thread.stop()
