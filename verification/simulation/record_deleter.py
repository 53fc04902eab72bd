"""A client that deletes records up to an offset, as an admin client or retention does."""

from __future__ import annotations

from lakelog.replication.protocol.replica_status import Replica
from lakelog.verification.simulation.actor import Work
from lakelog.verification.simulation.leader_visitor import LeaderVisitor
from lakelog.verification.simulation.tables import SimulatedLogChange, SimulatedLogState


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
