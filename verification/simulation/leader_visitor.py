"""A client that goes from leader to leader, and does something with each leader's row."""

from __future__ import annotations

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.replica_status import Leadership, Replica
from lakelog.verification.simulation.actor import Actor, Work
from lakelog.verification.simulation.events import AnswerLost


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
