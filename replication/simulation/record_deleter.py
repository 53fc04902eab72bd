"""Somebody who deletes records up to an offset, as an admin client does and retention does for it."""

from __future__ import annotations

from replication.errors import LakelogException
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.replica import LEADER_ROLE
from replication.simulation.actor import Actor, Work
from replication.simulation.events import AnswerLost
from replication.simulation.tables import LogChange, LogState, name_of


class RecordDeleter(Actor):
    """Looks at a leader's row, and raises the log start of that leader's log to some offset that is no secret."""

    def work(self) -> Work:
        while True:
            yield
            try:
                partitions = self.look(self.world.metadata)[1].partitions.values()
                led = [registration for registration in partitions if registration.leader >= 0]
                if led:
                    yield from self._delete(led[self.turn.salt % len(led)])
            except (AnswerLost, LakelogException) as error:
                self.say("is refused: %r", error)

    def _delete(self, registration: PartitionRegistration) -> Work:
        partition, leader = registration.topic_id_partition, registration.leader
        yield
        row = self.look(self.world.replicas[leader])[1].replicas.get(partition)
        if row is None or row.role != LEADER_ROLE or row.leader_epoch != registration.leader_epoch:
            return
        before = self.turn.salt % (row.log_end_offset + 2)

        def decide(_: int, state: LogState) -> LogChange | None:
            log = state.partition(partition)
            start = self.world.rules.delete_records_offset(
                log, row.leader_epoch, row.high_watermark, before, True, name_of(partition)
            )
            return LogChange(log_starts={partition: start}) if start > log.log_start_offset else None

        yield from self.transact(self.world.logs[leader], decide, f"delete {name_of(partition)} before {before}")
