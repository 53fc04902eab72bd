"""The clients of a history: an idempotent producer, a reader, and those that delete records and send requests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.append import ALL, Appended, AppendPosition, PartitionAppend, position_of
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.protocol.replica_status import Leadership, ReplicaStatus
from lakelog.replication.protocol.rounds import send_round
from lakelog.replication.protocol.rounds.send_round import RecordMetadata, SendOptions
from lakelog.replication.protocol.topic import partitions_of
from lakelog.verification.simulation.actor import Actor, Handler, Outcoming, Work
from lakelog.verification.simulation.history_events import AnswerLost
from lakelog.verification.simulation.simulated_tables import (
    Admin,
    NewBatch,
    SimulatedLogChange,
    SimulatedLogState,
    Topics,
)
from lakelog.verification.simulation.stage import Stage
from lakelog.verification.simulation.world_state import UNCLEAN_KEY

_PATIENCE = 16.0  # seconds for a send
_RETRIES = 3
_PENDING = 3  # the most waiting requests
Arguments = dict[str, Any]


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
            send_round.AppendToLeaders: self._append,
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
        work = rules.send_and_acknowledge(self.world.topic, counts, self._identity, options, clock, rules)
        answers: dict[int, RecordMetadata] = yield from self.carry_out(work, self._handlers)
        answer = answers[partition]
        if answer.error is not None:
            self.say("is refused: %r", answer.error)
            self._identity = self._new_identity()
        elif options.acks == ALL:
            self._acknowledge(answer)

    def _acknowledge(self, answer: RecordMetadata) -> None:
        self.say("gets the answer that %s are committed at offset %d", self._values, answer.base_offset)
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
        topics = self.read(self.world.topics)[1].topics
        return partitions_of(self.world.topic, topics, self.read(self.world.metadata)[1].partitions)

    def _append(self, step: send_round.AppendToLeaders) -> Outcoming:
        """Carries out one request: each send has one partition."""
        (append,) = step.appends
        (request,) = append.requests
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
            append.note_written([request.topic_id_partition])
            values = self._values[position.known :]
            header = self.world.rules.link(_header(request, position, values), position.chain)
            outcome = placed._replace(chain=header.chain)
            return SimulatedLogChange((NewBatch(header, f"s{self.world.number()}", values),))

        why = f"produce {self._values}@{request.leader_epoch}"
        try:
            yield from self.transact(self.world.logs[append.leader], decide, why)
        except LakelogException as error:
            return [error]
        return [{request.topic_id_partition: outcome}]

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
            rows = self.read(self.world.replicas[registration.leader])[1].replicas
        except AnswerLost as error:
            return Leadership(registration, error=error)
        return Leadership(registration, rows.get(registration.topic_id_partition))

    def _logs(self, step: send_round.ReadLeaderLogs) -> Outcoming:
        yield
        state = self.read(self.world.logs[step.leader], may_repeat=False)[1]
        return {partition: state.partition(partition) for partition in step.partitions}

    def _replicas(self, step: send_round.ReadReplicas) -> Outcoming:
        yield
        return self.read(self.world.replicas[step.broker])[1].replicas

    def _pause(self, _: send_round.Pause) -> Outcoming:
        yield


def _header(request: PartitionAppend, position: AppendPosition, values: tuple[int, ...]) -> BatchHeader:
    return BatchHeader(
        request.topic, request.topic_id, request.partition, request.leader_epoch, position.base_offset,
        position.base_offset + len(values) - 1, 0, len(values), request.producer_id, request.producer_epoch,
        request.base_sequence + position.known, digest=str(values),
    )  # fmt: skip


class LeaderVisitor(Actor):
    """Reads the metadata, then the row of one leader. The row counts if it has the leader epoch of the metadata."""

    def work(self) -> Work:
        while True:
            yield
            try:
                partitions = self.read(self.world.metadata)[1].partitions.values()
                led = [registration for registration in partitions if registration.leader >= 0]
                if led:
                    yield from self._go_to(led[self.turn.salt % len(led)])
            except (AnswerLost, LakelogException) as error:
                self.say("is refused: %r", error)

    def _go_to(self, registration: PartitionRegistration) -> Work:
        yield
        rows = self.read(self.world.replicas[registration.leader])[1].replicas
        row = Leadership(registration, rows.get(registration.topic_id_partition)).leader_row
        if row is not None:
            yield from self.visit(registration.leader, row)

    def visit(self, leader: int, row: ReplicaStatus) -> Work:
        """Acts on the leader's log, given its row. A subclass defines it."""
        raise TypeError(f"{type(self).__name__} does not define its visit")


class SimulatedReader(LeaderVisitor):
    """Reads the leader's HW first and then its log, as `clients.reader` does."""

    def visit(self, leader: int, row: ReplicaStatus) -> Work:
        partition = row.topic_id_partition
        yield
        log = self.read(self.world.logs[leader], may_repeat=False)[1].partition(partition)
        self.world.rules.check_log_leads(log, row, str(partition))
        self.world.checker.saw(partition, row.leader_epoch, log, row.high_watermark)
        self.say("has read %s below offset %d", str(partition), row.high_watermark)


class RecordDeleter(LeaderVisitor):
    """Raises the log start of a leader's log to some offset, whether it is committed or not."""

    def visit(self, leader: int, row: ReplicaStatus) -> Work:
        partition = row.topic_id_partition
        before = self.turn.salt % (row.log_end_offset + 2)

        def decide(_: int, state: SimulatedLogState) -> SimulatedLogChange | None:
            log = state.partition(partition)
            start = self.world.rules.delete_records_offset(
                log, row.leader_epoch, row.high_watermark, before, True, str(partition)
            )
            return SimulatedLogChange(log_starts={partition: start}) if start > log.log_start_offset else None

        yield from self.transact(self.world.logs[leader], decide, f"delete {partition} before {before}")


class SimulatedAdminClient(Actor):
    """Sends one request after the other, whether they still make sense when a controller decides them or not."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        setting = world.setting
        self._weights = {
            self._move: 8 * setting.reassigns, self._cancel: 3 * setting.reassigns, self._elect_preferred: 4,
            self._elect_unclean: 2 * setting.unclean_allowed, self._alter_configs: 3 * setting.unclean_allowed,
            self._delete: 2 * setting.deletes, self._do_nothing: 6,
        }  # fmt: skip

    def work(self) -> Work:
        while True:
            yield
            try:
                topics: Topics = self.read(self.world.topics)[1]
                yield
                version, metadata = self.read(self.world.metadata)
                wish = self._wish(topics, sorted(metadata.partitions.values(), key=_number))
                if wish is not None:
                    yield from self._ask(AdminRequest(f"t{self.world.topic_id()}", *wish, metadata_version=version))
            except AnswerLost as error:
                self.say("gives it up: %r", error)

    def _ask(self, request: AdminRequest) -> Work:
        def decide(_: int, state: Admin) -> Admin | None:
            is_asked = any(other.request_id == request.request_id for other in state.requests)
            has_asked_enough = len(state.requests) >= _PENDING
            return None if is_asked or has_asked_enough else state._replace(requests=(*state.requests, request))

        yield from self.transact(self.world.admin, decide, f"{request.kind} {request.arguments}")

    def _wish(self, topics: Topics, partitions: list[PartitionRegistration]) -> tuple[str, Arguments] | None:
        random = Random(self.turn.salt)
        if not topics.topics:
            return self._create(random)
        if not partitions:
            return None
        chosen = random.choices(list(self._weights), list(self._weights.values()))[0]
        return chosen(random, random.choice(partitions))

    def _create(self, random: Random) -> tuple[str, Arguments]:
        factors = sorted({2, min(3, len(self.world.broker_ids))})
        configs = {UNCLEAN_KEY: str(self.world.setting.unclean_allowed).lower()}
        return "create_topic", {
            "topic": self.world.topic, "partitions": self.world.setting.partitions,
            "replication_factor": random.choice(factors), "configs": configs,
        }  # fmt: skip

    def _move(self, random: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        """Adds a broker, replaces one, removes one, or changes the order."""
        others = [broker for broker in self.world.broker_ids if broker not in registration.replicas]
        target = random.sample(registration.replicas, len(registration.replicas))
        if len(target) > 1 and random.random() < 0.4:
            target.pop()
        if others and random.random() < 0.7:
            target.insert(random.randint(0, len(target)), random.choice(others))
        return "alter_partition_reassignments", _of(registration, target)

    def _cancel(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "alter_partition_reassignments", _of(registration, None)

    def _elect_preferred(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "elect_leaders", {"election_type": "preferred", "partitions": [registration.name]}

    def _elect_unclean(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "elect_leaders", {"election_type": "unclean", "partitions": [registration.name]}

    def _alter_configs(self, random: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        wanted = random.choice(("true", "false"))
        return "alter_configs", {"topic": registration.topic, "put": {UNCLEAN_KEY: wanted}, "delete": []}

    def _delete(self, _: Random, registration: PartitionRegistration) -> tuple[str, Arguments]:
        return "delete_topic", {"topic": registration.topic}

    def _do_nothing(self, _: Random, __: PartitionRegistration) -> None:
        return None


def _of(registration: PartitionRegistration, target: list[int] | None) -> Arguments:
    return {"reassignments": {registration.name: target}}


def _number(registration: PartitionRegistration) -> int:
    return registration.partition
