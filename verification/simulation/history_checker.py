"""Records everything that was committed, acknowledged and read, in each branch of a history, and checks the
invariants."""

from __future__ import annotations

from typing import Any

from lakelog.replication.controller.controller_context import ControllerContext
from lakelog.replication.controller.events import BrokerChange, ControllerChange, Event
from lakelog.replication.protocol.elections import is_unclean
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import LEADER_ROLE
from lakelog.verification.simulation import invariants
from lakelog.verification.simulation.history_facts import AcknowledgedBatch, Entry, HistoryFacts
from lakelog.verification.simulation.simulated_tables import (
    Metadata,
    Rows,
    SimulatedLogChange,
    SimulatedLogState,
    VersionedTable,
)


class HistoryChecker(HistoryFacts):
    """Checks the invariants on each commit that lands and on each answer that clients get."""

    def check_commit(self, table: VersionedTable[Any], before: Any, after: Any, change: Any) -> None:
        """Checks the invariants after a commit."""
        if isinstance(after, SimulatedLogState):
            assert isinstance(change, SimulatedLogChange)
            for partition in change.touched:
                for ask in invariants.OF_LOGS:
                    ask(self, invariants.LogCommit(table.owner, partition, before, after, change))
        elif isinstance(after, Rows):
            for partition, row in after.replicas.items():
                if before.replicas.get(partition) != row:
                    for tell in invariants.OF_ROWS:
                        tell(self, before.replicas.get(partition), row)
                    if row.role == LEADER_ROLE:
                        self.high_watermarks[partition, row.leader_epoch] = row.high_watermark
        elif isinstance(after, Metadata):
            self._look_at_metadata(before, after)

    def look_at_decision(self, event: Event, before: ControllerContext, after: ControllerContext) -> None:
        """Checks the invariants after a controller has written the result of an event."""
        if isinstance(event, BrokerChange | ControllerChange):
            invariants.a_new_broker_epoch_is_a_failure(event.before, before, after)

    def _look_at_metadata(self, before: Metadata, after: Metadata) -> None:
        invariants.controllers_never_go_back(before, after)
        for partition, deleted in before.partitions.items():
            if partition not in after.partitions:
                invariants.what_is_removed_was_deleted(self, deleted)
        for partition, registration in after.partitions.items():
            last = before.partitions.get(partition)
            if last == registration:
                continue
            if last is not None and is_unclean(last, registration):
                self.unclean[partition].append(registration.leader_epoch)
            for ask in invariants.OF_METADATA:
                ask(self, last, registration)

    def acknowledge(
        self, partition: TopicIdPartition, granted: int, leader_epoch: int, base_offset: int, values: tuple[int, ...]
    ) -> None:
        """Stores records that a producer got an acknowledgement for. They have the epoch of its last attempt, or that
        of an earlier attempt that had appended them already."""
        epochs = [e for e in range(leader_epoch, -1, -1) if self.values.get((partition, base_offset, e)) == values[0]]
        entries = tuple(Entry(next(iter(epochs), leader_epoch), value) for value in values)
        promise = AcknowledgedBatch(granted, base_offset, entries)
        branch = self.branch(partition, granted)
        self.acknowledged[branch].append(promise)
        for broker, log in self.later_leaders(partition, granted):
            invariants.leader_has(self, broker, log, branch, promise)

    def saw(self, partition: TopicIdPartition, leader_epoch: int, log: PartitionLog, high_watermark: int) -> None:
        """Checks and stores what a reader has read below a HW."""
        branch, start = self.branch(partition, leader_epoch), min(log.log_start_offset, high_watermark)
        found = [*self.committed[branch][:start], *self.entries(log, start, high_watermark)]
        invariants.read_is_committed(self, branch, found, high_watermark)
        known = self.read[branch]
        known += found[len(known) :]
        self.read_to[partition, leader_epoch] = max(len(found), self.read_to.get((partition, leader_epoch), 0))
