"""The state of a world: its tables, its clock, its rules and what a history is about. Actors share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.verification.simulation.rules import Rules
from lakelog.verification.simulation.simulated_tables import (
    Admin,
    BrokerRow,
    Metadata,
    Rows,
    SimulatedLogState,
    Topics,
    Values,
    VersionedTable,
)

UNCLEAN_KEY = "unclean.leader.election.enable"


class WorldSettings(NamedTuple):
    """What a history is about: how many of everything, and what is allowed in it."""

    brokers: int = 3
    partitions: int = 1
    min_insync_replicas: int = 1
    unclean_allowed: bool = False
    replica_lag_time_max: float = 3.0
    reassigns: bool = True
    deletes: bool = True
    producers: int = 3
    deletes_records: bool = False


class WorldState:
    """All tables, each with all its versions, and the time. `records`: the values in each segment."""

    def __init__(self, setting: WorldSettings, rules: Rules) -> None:
        self.setting = setting
        self.rules = rules
        self.step = 0
        self.now = 0.0
        self.trace: list[str] | None = None
        self.topic = "numbers"
        self.is_calm = False
        self._topic_ids = 1
        self.broker_ids = tuple(range(1, setting.brokers + 1))
        self.metadata = VersionedTable("metadata", Metadata(self._first_partitions()))
        self.topics = VersionedTable("topics", Topics({self.topic: self._first_topic()}))
        self.admin = VersionedTable("admin", Admin())
        self.lease = VersionedTable("controller", 0)
        self.registry: VersionedTable[Mapping[int, BrokerRow]] = VersionedTable(
            "brokers", {b: BrokerRow(0) for b in self.broker_ids}
        )
        self.logs = {b: VersionedTable(f"log of broker {b}", SimulatedLogState(-1, {}), b) for b in self.broker_ids}
        self.replicas = {b: VersionedTable(f"replicas of broker {b}", Rows(-1, {}), b) for b in self.broker_ids}
        self.records: dict[str, Values] = {}
        self._numbers = 0

    def _first_topic(self) -> Topic:
        configs = {UNCLEAN_KEY: str(self.setting.unclean_allowed).lower()}
        return Topic(self.topic, "t1", self.setting.partitions, configs)

    def _first_partitions(self) -> dict[TopicIdPartition, PartitionRegistration]:
        spread = [self.broker_ids[n % len(self.broker_ids) :] + self.broker_ids[: n % len(self.broker_ids)]
                  for n in range(self.setting.partitions)]  # fmt: skip
        made = [
            new_partition(self.topic, "t1", n, b[: max(2, len(b) - 1) if n else 3], b) for n, b in enumerate(spread)
        ]
        epochs = dict.fromkeys(self.broker_ids, 1)  # of the first process of each
        return {r.topic_id_partition: replace(r, isr_epochs={b: epochs[b] for b in r.isr}) for r in made}

    def say(self, who: str, words: str, *facts: object) -> None:
        """A line of the history, if anybody wants to read it."""
        if self.trace is not None:
            self.trace.append(f"{self.step:>5}  {who:<22}  {words % facts}")

    def number(self) -> int:
        """A number that is not used yet: the value of a record, the id of a producer, the name of a segment."""
        self._numbers += 1
        return self._numbers

    def topic_id(self) -> int:
        """A number that no topic or request has had before."""
        self._topic_ids += 1
        return self._topic_ids

    def min_isr(self, registration: PartitionRegistration) -> int:
        """Members that the ISR of a partition needs."""
        return effective_min_isr(self.setting.min_insync_replicas, len(registration.replicas))
