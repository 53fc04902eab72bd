"""An idempotent producer: what it sends again must not be in a log twice, what it was promised must not be lost."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

from replication.errors import LakelogException
from replication.protocol.append import ALL, Appended, AppendPosition, PartitionAppend, check_min_isr, position_of
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import BatchHeader, TopicIdPartition
from replication.protocol.replica import LEADER_ROLE, Replica
from replication.simulation.actor import Actor, Work
from replication.simulation.events import AnswerLost
from replication.simulation.tables import LogChange, LogState, NewBatch

if TYPE_CHECKING:
    from replication.simulation.world import World

_ATTEMPTS, _LOOKS = 3, 5  # to append a batch, and for its acknowledgement
_EPOCH = 0  # of the producer: nobody takes over from it, it takes a new id instead


class Sent(NamedTuple):
    """What is sent: its values stay the same however often."""

    number: int
    acks: int
    values: tuple[int, ...]


class Producer(Actor):
    """Sends batch after batch to the leader it believes in, and waits for what acks=all promises."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._begin()

    def _begin(self) -> None:
        """A new identity: what became of a failed append is not known, and its sequence is not to be used again."""
        self._id = self.world.number()
        self._sequences: dict[TopicIdPartition, int] = {}

    def work(self) -> Work:
        while True:
            yield
            salt = self.turn.salt
            values = tuple(self.world.number() for _ in range(1 + salt % 3))
            acks = 1 if salt % 5 < 2 else ALL
            yield from self._send(Sent(salt // 3 % self.world.setting.partitions, acks, values))

    def _send(self, sent: Sent) -> Work:
        for _ in range(_ATTEMPTS):
            yield
            try:
                registration = self._registration(sent.number)
                if registration is None:
                    continue
                needed = self.world.min_isr(registration)
                check_min_isr(sent.acks, len(registration.isr), needed, registration.topic, sent.number)
                request = self._request(registration, sent)
                appended = yield from self._append(registration.leader, request, sent)
            except (LakelogException, AnswerLost) as error:
                self.say("is refused: %r", error)
                continue
            self._sequences[request.topic_id_partition] = request.base_sequence + request.records
            if sent.acks == ALL:
                yield from self._wait(request, appended, sent)
            return
        self._begin()

    def _registration(self, number: int) -> PartitionRegistration | None:
        partitions = self.look(self.world.metadata)[1].partitions.values()
        return next((r for r in partitions if r.partition == number and r.leader >= 0), None)

    def _request(self, registration: PartitionRegistration, sent: Sent) -> PartitionAppend:
        sequence = self._sequences.get(registration.topic_id_partition, 0)
        return PartitionAppend(
            registration.topic, registration.topic_id, registration.partition, registration.replicas,
            registration.leader_epoch, len(sent.values), self._id, _EPOCH, sequence,
        )  # fmt: skip

    def _append(self, leader: int, request: PartitionAppend, sent: Sent) -> Generator[None, None, Appended]:
        placed: Appended | None = None

        def decide(_: int, state: LogState) -> LogChange | None:
            nonlocal placed
            found: Appended = self.world.rules.place(state.partition(request.topic_id_partition), request)
            placed = found
            position = position_of(found, state.partition(request.topic_id_partition).log_end)
            if position is None:
                return None
            values = sent.values[position.known :]
            header = self.world.rules.link(_header(request, position, values), position.chain)
            return LogChange((NewBatch(header, f"s{self.world.number()}", values),))

        yield from self.transact(self.world.logs[leader], decide, f"produce {sent.values}@{request.leader_epoch}")
        assert placed is not None
        return placed

    def _wait(self, request: PartitionAppend, appended: Appended, sent: Sent) -> Work:
        """Until the leader's HW has passed the records, whoever leads by then."""
        partition = request.topic_id_partition
        for look in range(_LOOKS):
            try:
                yield
                registration = self.look(self.world.metadata)[1].partitions.get(partition)
                if registration is None:
                    break
                yield
                row = self._leader_row(registration)
            except AnswerLost:
                continue
            epoch = request.leader_epoch if appended.leader_epoch is None else appended.leader_epoch
            outcome = self.world.rules.produce_outcome(
                row, epoch, appended.last_offset, len(registration.isr), self.world.min_isr(registration),
                look == _LOOKS - 1,
            )  # fmt: skip
            if outcome.is_done and outcome.error is None and row is not None:
                self.say("is told that %s are committed at offset %d", sent.values, appended.base_offset)
                self.world.witness.acknowledge(
                    partition, row.leader_epoch, request.leader_epoch, appended.base_offset, sent.values
                )
                return
            if outcome.is_done:
                break
        self._begin()

    def _leader_row(self, registration: PartitionRegistration) -> Replica | None:
        """What the leader says, once it has taken up the role under the epoch that the metadata has."""
        if registration.leader < 0:
            return None
        rows = self.look(self.world.replicas[registration.leader])[1].replicas
        row = rows.get(registration.topic_id_partition)
        leads = row is not None and row.role == LEADER_ROLE and row.leader_epoch == registration.leader_epoch
        return row if leads else None


def _header(request: PartitionAppend, position: AppendPosition, values: tuple[int, ...]) -> BatchHeader:
    return BatchHeader(
        request.topic, request.topic_id, request.partition, request.leader_epoch, position.base_offset,
        position.base_offset + len(values) - 1, 0, len(values), request.producer_id, request.producer_epoch,
        request.base_sequence + position.known, digest=str(values),
    )  # fmt: skip
