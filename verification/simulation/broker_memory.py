"""The memory of a broker's process: its threads share it, and lose it together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from lakelog.replication.protocol.fetch_state import PartitionFetchState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import Replica
from lakelog.verification.simulation.stage import Stage
from lakelog.verification.simulation.tables import BrokerRow


class BrokerMemory(ABC):
    """What a process has read of the tables, and what it hosts."""

    def __init__(self, world: Stage, name: str, broker_id: int) -> None:
        self.world = world
        self.name = name
        self.broker_id = broker_id
        self.is_paused = False
        self.is_shutting_down = False
        self.epoch = -1
        self.log_table = world.logs[broker_id]
        self.log_version, self.log = 0, self.log_table.at(0)
        self.replica_table = world.replicas[broker_id]
        self.published: Mapping[TopicIdPartition, Replica] = {}
        self.metadata: Mapping[TopicIdPartition, PartitionRegistration] = {}
        self.registry: Mapping[int, BrokerRow] = {}
        self.hosted: dict[TopicIdPartition, HostedPartition] = {}

    @abstractmethod
    def fetch_state(self, partition: TopicIdPartition) -> PartitionFetchState | None:
        """How far a followed partition has come; None if no fetcher has it."""
