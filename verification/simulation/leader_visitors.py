"""A client that goes from leader to leader, and does something with each leader's row."""

from __future__ import annotations

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.replica_status import Leadership, Replica
from lakelog.verification.simulation.actor import Actor, Work
from lakelog.verification.simulation.events import AnswerLost
from lakelog.verification.simulation.tables import SimulatedLogChange, SimulatedLogState


class LeaderVisitor(Actor):
    """Reads the metadata, then the row of one leader. The row counts if it has the leader epoch of the metadata."""

    def work(self) -> Work:
        while True:
            yield
            try:
                partitions = self.look(self.world.metadata)[1].partitions.values()
                led = [registration for registration in partitions if registration.leader >= 0]
                if led:
                    yield from self._go_to(led[self.turn.salt % len(led)])
            except (AnswerLost, LakelogException) as error:
                self.say("is refused: %r", error)

    def _go_to(self, registration: PartitionRegistration) -> Work:
        yield
        rows = self.look(self.world.replicas[registration.leader])[1].replicas
        row = Leadership(registration, rows.get(registration.topic_id_partition)).leader_row
        if row is not None:
            yield from self.visit(registration.leader, row)

    def visit(self, leader: int, row: Replica) -> Work:
        """Acts on the leader's log, given its row. A subclass defines it."""
        raise TypeError(f"{type(self).__name__} does not define its visit")


class SimulatedReader(LeaderVisitor):
    """Reads the leader's HW first and then its log, as `clients.reader` does."""

    def visit(self, leader: int, row: Replica) -> Work:
        partition = row.topic_id_partition
        yield
        log = self.look(self.world.logs[leader], may_repeat=False)[1].partition(partition)
        self.world.rules.check_log_leads(log, row, str(partition))
        self.world.checker.saw(partition, row.leader_epoch, log, row.high_watermark)
        self.say("has read %s below offset %d", str(partition), row.high_watermark)


class RecordDeleter(LeaderVisitor):
    """Raises the log start of a leader's log to some offset, whether it is committed or not."""

    def visit(self, leader: int, row: Replica) -> Work:
        partition = row.topic_id_partition
        before = self.turn.salt % (row.log_end_offset + 2)

        def decide(_: int, state: SimulatedLogState) -> SimulatedLogChange | None:
            log = state.partition(partition)
            start = self.world.rules.delete_records_offset(
                log, row.leader_epoch, row.high_watermark, before, True, str(partition)
            )
            return SimulatedLogChange(log_starts={partition: start}) if start > log.log_start_offset else None

        yield from self.transact(self.world.logs[leader], decide, f"delete {partition} before {before}")
