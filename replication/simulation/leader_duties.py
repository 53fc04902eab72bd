"""What a leader does in each round: looks at its followers, changes the ISR, raises the HW. The rules decide."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING

from replication.protocol import steps
from replication.protocol.isr import IsrChange, Outcome
from replication.protocol.leadership import Surroundings
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.simulation.actor import Work
from replication.simulation.broker_thread import BrokerThread
from replication.simulation.events import AnswerLost
from replication.simulation.tables import LogState, Metadata, name_of

if TYPE_CHECKING:
    from replication.simulation.broker_process import BrokerProcess

Rows = Mapping[int, Mapping[TopicIdPartition, Replica]]


class LeaderDuties(BrokerThread):
    """The part of a broker's main thread that leads."""

    def __init__(self, process: BrokerProcess, name: str) -> None:
        super().__init__(process, name)
        self._around: dict[TopicIdPartition, Surroundings] = {}

    def _led(self) -> list[PartitionRegistration]:
        hosted = self.process.hosted.values()
        return [h.registration for h in hosted if h.registration.leader == self.process.broker_id]

    def _lead(self) -> Generator[None, None, bool]:
        """Tells whether a HW has moved."""
        led, hosted = self._led(), self.process.hosted
        if not led:
            return False
        rows = yield from self._follower_rows(sorted({broker for r in led for broker in r.followers}))
        yield
        log = self.refresh_log()
        self._around = {r.topic_id_partition: self._surroundings(r, log, rows) for r in led}
        before = {p: hosted[p].high_watermark for p in self._around}
        for partition, around in self._around.items():
            hosted[partition] = self.rules.attend(hosted[partition], around)
        changes = tuple(h.pending for h in hosted.values() if h.pending)
        if changes:
            yield from self._alter_partitions(steps.AlterPartitions(changes))
        yield from self._raise_high_watermarks(steps.RaiseHighWatermarks())
        return any(hosted[p].high_watermark > before[p] for p in before)

    def _follower_rows(self, brokers: Iterable[int]) -> Generator[None, None, Rows]:
        rows: dict[int, Mapping[TopicIdPartition, Replica]] = {}
        for broker in brokers:
            yield
            try:
                rows[broker] = self.look(self.world.replicas[broker])[1].replicas
            except AnswerLost:
                continue
        return rows

    def _surroundings(self, registration: PartitionRegistration, log: LogState, rows: Rows) -> Surroundings:
        partition, registry = registration.topic_id_partition, self.process.registry
        found = {b: rows[b][partition] for b in registration.followers if b in rows and partition in rows[b]}
        epochs = {broker: row.broker_epoch for broker, row in registry.items()}
        eligible = {broker: row.broker_epoch for broker, row in registry.items() if not row.shutting_down}
        return Surroundings(
            log.partition(partition), found, epochs, eligible, self.world.now,
            self.world.setting.replica_lag_time_max, self.world.min_isr(registration), True,
        )  # fmt: skip

    def _alter_partitions(self, step: steps.AlterPartitions) -> Work:
        outcomes: dict[TopicIdPartition, tuple[Outcome, PartitionRegistration | None]] = {}

        def decide(_: int, metadata: Metadata) -> Metadata | None:
            registry = self.world.registry.at(self.world.registry.newest)
            epochs = {broker: row.broker_epoch for broker, row in registry.items()}
            found = metadata.partitions
            outcomes.update(
                {c.partition: self.rules.alter_partition(found.get(c.partition), c, epochs) for c in step.changes}
            )
            applied = {p: r for p, (outcome, r) in outcomes.items() if r and outcome is Outcome.APPLIED}
            return metadata._replace(partitions={**found, **applied}) if applied else None

        try:
            yield from self.transact(self.world.metadata, decide, _words(step.changes))
        except AnswerLost:
            return  # what has become of them is not known: they stay pending, and the HW is raised all the same
        hosted = self.process.hosted
        for partition, (outcome, current) in outcomes.items():
            if partition in hosted:
                hosted[partition] = self.rules.settle_isr_change(hosted[partition], outcome, current)
                self.say("ISR of %s: %s", name_of(partition), outcome.value)

    def _raise_high_watermarks(self, _: steps.RaiseHighWatermarks) -> Work:
        yield
        hosted = self.process.hosted
        for partition, around in self._around.items():
            if partition in hosted:
                hosted[partition] = self.rules.raise_high_watermark(hosted[partition], around)
                self.say("HW of %s: %d", name_of(partition), hosted[partition].high_watermark)


def _words(changes: Iterable[IsrChange]) -> str:
    return ", ".join(f"ISR of {name_of(c.partition)}: {c.isr}" for c in changes)
