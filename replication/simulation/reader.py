"""A reader of committed records: what it has seen must stay true."""

from __future__ import annotations

from replication.errors import LakelogException
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.replica import LEADER_ROLE
from replication.simulation.actor import Actor, Work
from replication.simulation.events import AnswerLost
from replication.simulation.tables import name_of


class Reader(Actor):
    """Reads the leader's HW first and its log after that, as `clients.reader` does."""

    def work(self) -> Work:
        while True:
            yield
            try:
                partitions = self.look(self.world.metadata)[1].partitions.values()
                led = [registration for registration in partitions if registration.leader >= 0]
                if led:
                    yield from self._read(led[self.turn.salt % len(led)])
            except (AnswerLost, LakelogException) as error:
                self.say("is refused: %r", error)

    def _read(self, registration: PartitionRegistration) -> Work:
        partition, leader = registration.topic_id_partition, registration.leader
        yield
        row = self.look(self.world.replicas[leader])[1].replicas.get(partition)
        if row is None or row.role != LEADER_ROLE or row.leader_epoch != registration.leader_epoch:
            return
        yield
        log = self.look(self.world.logs[leader], may_repeat=False)[1].partition(partition)
        self.world.rules.check_log_leads(log.role, row.leader_epoch, name_of(partition))
        self.world.witness.saw(partition, row.leader_epoch, log, row.high_watermark)
        self.say("has read %s below offset %d", name_of(partition), row.high_watermark)
