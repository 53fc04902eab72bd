"""The reads and commits of a leader's round, on tables in memory. The round is shipped code."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from lakelog.replication.protocol.isr import AlterIsrOutcome, IsrOutcomes
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import Replica
from lakelog.replication.protocol.rounds import steps
from lakelog.replication.protocol.rounds.broker_rounds import Memory
from lakelog.verification.simulation.actor import Handler, Outcoming
from lakelog.verification.simulation.broker_memory import BrokerMemory
from lakelog.verification.simulation.broker_thread import BrokerThread
from lakelog.verification.simulation.events import AnswerLost
from lakelog.verification.simulation.tables import Metadata, SimulatedLogState


class LeaderDuties(BrokerThread):
    """The leader's part of a broker's main thread."""

    def __init__(self, process: BrokerMemory, name: str) -> None:
        super().__init__(process, name)
        self.memory = Memory(process.hosted, lambda: process.published, OfflineReplicas(process.broker_id))
        self._leader = self.rules.leader_round(  # lags count in each round: so more of them matter
            process.broker_id, self.world.setting.replica_lag_time_max, 0.0, lambda: self.world.now, self.rules
        )
        self.handlers: dict[type, Handler] = {
            steps.ReadFollowerRows: self._follower_rows,
            steps.ReadCluster: self._cluster,
            steps.ReadLog: self._read_log,
            steps.AlterPartitions: self._alter_partitions,
            steps.IsrChangesSettled: self._isr_changes_settled,
        }

    def _lead(self) -> Generator[None, None, bool]:
        """Runs a leader's round. Returns whether there is news for other brokers."""
        before = dict(self.process.hosted)
        has_news: bool = yield from self.carry_out(self._leader.run(self.memory), self.handlers)
        for partition, now in self.process.hosted.items():
            is_led = now.registration.leader == self.process.broker_id
            if is_led and now.high_watermark != before[partition].high_watermark:
                self.say("HW of %s: %d", str(partition), now.high_watermark)
        return has_news

    def _follower_rows(self, step: steps.ReadFollowerRows) -> Outcoming:
        rows: dict[int, Mapping[TopicIdPartition, Replica]] = {}
        began_at: dict[int, float] = {}
        for broker in step.brokers:
            yield
            try:
                began_at[broker] = self.world.now
                rows[broker] = self.look(self.world.replicas[broker])[1].replicas
            except AnswerLost:
                continue
        return steps.FollowersSeen(rows, began_at)

    def _cluster(self, _: steps.ReadCluster) -> Outcoming:
        yield from ()
        registry = self.process.registry
        epochs = {broker: row.broker_epoch for broker, row in registry.items()}
        alive = {broker: row.broker_epoch for broker, row in registry.items() if not row.shutting_down}
        return steps.ClusterView(epochs, alive, self.world.min_isr)

    def _read_log(self, step: steps.ReadLog) -> Outcoming:
        yield
        log, before = self.refresh_log(), step.since
        changed = None
        if isinstance(before, SimulatedLogState):
            changed = [p for p, found in log.partitions.items() if before.partitions.get(p) is not found]
        return steps.LogsSeen(log.partition, changed, log)

    def _isr_changes_settled(self, _: steps.IsrChangesSettled) -> Outcoming:
        yield

    def _alter_partitions(self, step: steps.AlterPartitions) -> Outcoming:
        outcomes: IsrOutcomes = {}

        def decide(_: int, metadata: Metadata) -> Metadata | None:
            nonlocal outcomes
            registry = self.world.registry.at(self.world.registry.newest)
            epochs = {broker: row.broker_epoch for broker, row in registry.items()}
            found = metadata.partitions
            outcomes = {
                c.topic_id_partition: self.rules.alter_partition(found.get(c.topic_id_partition), c, epochs)
                for c in step.changes
            }
            applied = {p: r for p, (outcome, r) in outcomes.items() if r and outcome is AlterIsrOutcome.APPLIED}
            return metadata._replace(partitions={**found, **applied}) if applied else None

        words = ", ".join(f"ISR of {c.topic_id_partition}: {c.isr}" for c in step.changes)
        yield from self.transact(self.world.metadata, decide, words)
        for partition, (outcome, _) in outcomes.items():
            self.say("ISR of %s: %s", str(partition), outcome.value)
        return outcomes
