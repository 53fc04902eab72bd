"""The common part of a broker process's threads: its log, its rows, and the claim on both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lakelog.replication.errors import FencedLeaderEpochException, StaleBrokerEpochException
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import Replica
from lakelog.replication.protocol.rounds.fetch_steps import RaiseLogStarts, TruncateLogs
from lakelog.verification.simulation.actor import Actor, Work
from lakelog.verification.simulation.broker_memory import BrokerMemory
from lakelog.verification.simulation.rules import Rules
from lakelog.verification.simulation.tables import Rows, SimulatedLogChange, SimulatedLogState


class BrokerThread(Actor):
    """A thread of a process. All threads share the process's memory and lose it together."""

    def __init__(self, process: BrokerMemory, name: str) -> None:
        self.process = process
        self.rules = process.world.rules
        super().__init__(process.world, f"{process.name}/{name}")

    def check_claim(self, claimed: int, table: str) -> None:
        """Raises StaleBrokerEpochException if a newer process of this broker has claimed the table."""
        if self.rules.claims_are_checked and claimed > self.process.epoch:
            raise StaleBrokerEpochException(f"{table} is claimed under broker epoch {claimed}")

    def refresh_log(self) -> SimulatedLogState:
        """Replays the new commits of the log. Raises StaleBrokerEpochException, AnswerLost."""
        self._see(*self.look(self.process.log_table, may_repeat=False))
        return self.process.log

    def _see(self, version: int, state: SimulatedLogState) -> None:
        self.check_claim(state.broker_epoch, self.process.log_table.name)
        if version > self.process.log_version:
            self.process.log_version, self.process.log = version, state

    def transact_log(self, decide: Callable[[SimulatedLogState], SimulatedLogChange | None], why: str) -> Work:
        """Commits to the log. `decide` sees its newest state."""

        def on_newest(version: int, state: SimulatedLogState) -> SimulatedLogChange | None:
            self._see(version, state)
            return decide(state)

        table = self.process.log_table
        version = yield from self.transact(table, on_newest, why)
        if version is not None:
            self._see(table.newest, table.at(table.newest))

    def publish(self, why: str) -> Work:
        """Writes the broker's rows of its replicas if they differ from the published ones."""
        process, table = self.process, self.process.replica_table

        def decide(_: int, state: Rows) -> Rows | None:
            self.check_claim(state.broker_epoch, table.name)
            process.published = state.replicas
            wanted = {p: self._row(p, process.log.partition(p)) for p in process.hosted}
            return None if _facts(wanted) == _facts(state.replicas) else Rows(state.broker_epoch, wanted)

        version = yield from self.transact(table, decide, why)
        if version is not None:
            process.published = table.at(table.newest).replicas

    def _row(self, partition: TopicIdPartition, log: PartitionLog) -> Replica:
        process = self.process
        row: Replica = self.rules.replica_row(
            process.broker_id, process.epoch, process.hosted[partition], log, process.fetch_state(partition),
            process.published.get(partition), process.log_version,
        )  # fmt: skip
        return row


def _facts(replicas: Mapping[TopicIdPartition, Replica]) -> dict[TopicIdPartition, Replica]:
    return {partition: replace(row, log_version=0) for partition, row in replicas.items()}


def truncated_logs(rules: Rules, step: TruncateLogs, state: SimulatedLogState) -> SimulatedLogChange | None:
    """The batches that go, where the role is still the one that this was decided in."""
    drops: dict[TopicIdPartition, frozenset[str]] = {}
    restarts: dict[TopicIdPartition, LogEnd] = {}
    for partition, truncation in step.truncations.items():
        try:
            rules.check_truncation(state.partition(partition), truncation, str(partition))
        except FencedLeaderEpochException:
            continue
        stop = truncation.offset if truncation.restart is None else 0  # starting over, it keeps nothing below its start
        gone = [b for b in state.partition(partition).batches if b.header.next_offset > stop]
        drops.update({partition: frozenset(b.segment for b in gone)} if gone else {})
        restarts.update({} if truncation.restart is None else {partition: truncation.restart})
    return SimulatedLogChange((), drops, restarts=restarts) if drops or restarts else None


def raised_log_starts(step: RaiseLogStarts, state: SimulatedLogState) -> SimulatedLogChange | None:
    """The log starts that rise, of partitions that still follow at the epoch of the decision."""
    starts = {
        p: offset
        for p, (leader_epoch, offset) in step.starts.items()
        if state.partition(p).role.follows_at(leader_epoch) and offset > state.partition(p).log_start_offset
    }
    return SimulatedLogChange((), log_starts=starts) if starts else None
