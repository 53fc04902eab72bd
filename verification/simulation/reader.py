"""A reader of committed records. What it has read must stay committed."""

from __future__ import annotations

from lakelog.replication.protocol.replica_status import Replica
from lakelog.verification.simulation.actor import Work
from lakelog.verification.simulation.leader_visitor import LeaderVisitor


class SimulatedReader(LeaderVisitor):
    """Reads the leader's HW first and then its log, as `clients.reader` does."""

    def visit(self, leader: int, row: Replica) -> Work:
        partition = row.topic_id_partition
        yield
        log = self.look(self.world.logs[leader], may_repeat=False)[1].partition(partition)
        self.world.rules.check_log_leads(log, row, str(partition))
        self.world.checker.saw(partition, row.leader_epoch, log, row.high_watermark)
        self.say("has read %s below offset %d", str(partition), row.high_watermark)
