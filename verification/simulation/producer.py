"""An idempotent producer: no log may have a repeated batch twice, and no log may lose an acknowledged one.

The rounds are shipped code. Only their reads and commits on tables in memory are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.append import ALL, Appended, AppendPosition, PartitionAppend, position_of
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.protocol.replica_status import Leadership
from lakelog.replication.protocol.rounds import send_round
from lakelog.replication.protocol.rounds.send_round import RecordMetadata, SendOptions
from lakelog.replication.protocol.topic import partitions_of
from lakelog.verification.simulation.actor import Actor, Handler, Outcoming, Work
from lakelog.verification.simulation.events import AnswerLost
from lakelog.verification.simulation.stage import Stage
from lakelog.verification.simulation.tables import NewBatch, SimulatedLogChange, SimulatedLogState

_PATIENCE = 16.0  # seconds for a send
_RETRIES = 3


class SimulatedProducer(Actor):
    """Sends batch after batch. A repeated batch has the same values."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        self._identity = self._new_identity()
        self._values: tuple[int, ...] = ()
        self._seen: dict[TopicIdPartition, Leadership] = {}
        self._handlers: dict[type, Handler] = {
            send_round.ReadTopic: self._topic,
            send_round.TakeIdentity: self._take_identity,
            send_round.AppendToLeader: self._append,
            send_round.ReadLeaderships: self._leaderships,
            send_round.ReadLeaderLogs: self._logs,
            send_round.ReadReplicas: self._replicas,
            send_round.Pause: self._pause,
        }

    def _new_identity(self) -> ProducerIdentity:
        return ProducerIdentity(ProducerIdAndEpoch(self.world.number(), 0))

    def work(self) -> Work:
        while True:
            yield
            salt = self.turn.salt
            self._values = tuple(self.world.number() for _ in range(1 + salt % 3))
            options = SendOptions(
                self.name, 1 if salt % 5 < 2 else ALL, _RETRIES, int(_PATIENCE * 1000), self.world.now + _PATIENCE
            )
            yield from self._send(salt // 3 % self.world.setting.partitions, options)

    def _send(self, partition: int, options: SendOptions) -> Work:
        """Sends a batch. After a failed send it takes a new identity."""
        counts = {partition: len(self._values)}
        rules, clock = self.world.rules, lambda: self.world.now
        work = rules.produce(self.world.topic, counts, self._identity, options, clock, rules)
        answers: dict[int, RecordMetadata] = yield from self.carry_out(work, self._handlers)
        answer = answers[partition]
        if answer.error is not None:
            self.say("is refused: %r", answer.error)
            self._identity = self._new_identity()
        elif options.acks == ALL:
            self._acknowledge(answer)

    def _acknowledge(self, answer: RecordMetadata) -> None:
        self.say("is told that %s are committed at offset %d", self._values, answer.base_offset)
        (seen,) = self._seen.values()
        assert seen.row is not None
        self.world.checker.acknowledge(
            seen.registration.topic_id_partition, seen.row.leader_epoch, answer.leader_epoch, answer.base_offset,
            self._values,
        )  # fmt: skip

    def _topic(self, _: send_round.ReadTopic) -> Outcoming:
        yield
        return send_round.TopicSeen(self._partitions(), self.world.setting.min_insync_replicas)

    def _take_identity(self, _: send_round.TakeIdentity) -> Outcoming:
        yield from ()  # takes no time
        return ProducerIdAndEpoch(self.world.number(), 0)

    def _partitions(self) -> dict[int, PartitionRegistration]:
        topics = self.look(self.world.topics)[1].topics
        return partitions_of(self.world.topic, topics, self.look(self.world.metadata)[1].partitions)

    def _append(self, step: send_round.AppendToLeader) -> Outcoming:
        """Carries out one request: each send has one partition."""
        (request,) = step.requests
        outcome: Appended | LakelogException | None = None

        def decide(_: int, state: SimulatedLogState) -> SimulatedLogChange | None:
            nonlocal outcome
            log = state.partition(request.topic_id_partition)
            try:
                outcome = placed = self.world.rules.place(log, request, self._digests)
            except LakelogException as error:
                outcome = error
                return None
            position = position_of(placed, log.log_end)
            if position is None:
                outcome = placed._replace(chain=log.chain_at(placed.last_offset + 1) or "")
                return None
            step.writes([request.topic_id_partition])
            values = self._values[position.known :]
            header = self.world.rules.link(_header(request, position, values), position.chain)
            outcome = placed._replace(chain=header.chain)
            return SimulatedLogChange((NewBatch(header, f"s{self.world.number()}", values),))

        why = f"produce {self._values}@{request.leader_epoch}"
        yield from self.transact(self.world.logs[step.leader], decide, why)
        return {request.topic_id_partition: outcome}

    def _digests(self, parts: Sequence[range]) -> list[str]:
        return [str(self._values[part.start : part.stop]) for part in parts]

    def _leaderships(self, step: send_round.ReadLeaderships) -> Outcoming:
        """Reads the metadata first, then the rows of the leaders."""
        yield
        registrations = self._partitions()
        found: dict[int, Leadership] = {}
        for registration in (registrations[number] for number in step.partitions if number in registrations):
            found[registration.partition] = yield from self._leadership(registration)
        self._seen = {seen.registration.topic_id_partition: seen for seen in found.values()}
        return send_round.LeadershipsSeen(found, self.world.setting.min_insync_replicas)

    def _leadership(self, registration: PartitionRegistration) -> Outcoming:
        yield
        if registration.leader == NO_LEADER:
            return Leadership(registration)
        try:
            rows = self.look(self.world.replicas[registration.leader])[1].replicas
        except AnswerLost as error:
            return Leadership(registration, error=error)
        return Leadership(registration, rows.get(registration.topic_id_partition))

    def _logs(self, step: send_round.ReadLeaderLogs) -> Outcoming:
        yield
        state = self.look(self.world.logs[step.leader], may_repeat=False)[1]
        return {partition: state.partition(partition) for partition in step.partitions}

    def _replicas(self, step: send_round.ReadReplicas) -> Outcoming:
        yield
        return self.look(self.world.replicas[step.broker])[1].replicas

    def _pause(self, _: send_round.Pause) -> Outcoming:
        yield


def _header(request: PartitionAppend, position: AppendPosition, values: tuple[int, ...]) -> BatchHeader:
    return BatchHeader(
        request.topic, request.topic_id, request.partition, request.leader_epoch, position.base_offset,
        position.base_offset + len(values) - 1, 0, len(values), request.producer_id, request.producer_epoch,
        request.base_sequence + position.known, digest=str(values),
    )  # fmt: skip
