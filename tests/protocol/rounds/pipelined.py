"""A producer with several sends in flight, on logs in memory that change their leader and lose answers."""

import dataclasses
import random
from collections import deque
from functools import partial

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol.append import ALL, place, position_of
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, PartitionLog, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch, ProducerIdentity
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.protocol.replica_status import LEADER_ROLE, Leadership, ReplicaStatus, no_leader
from lakelog.replication.protocol.rounds.acknowledge_round import send_and_acknowledge
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.pipeline_round import PipelineRound, SendInFlight, StepOf
from lakelog.replication.protocol.rounds.send_round import (
    AppendToLeaders,
    LeadershipsSeen,
    Pause,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    ReadTopic,
    SendOptions,
    TakeIdentity,
    TopicSeen,
)

BROKERS, PARTITIONS = (1, 2, 3), (0, 1)
MOST_SENDS = 30
READS = ReadTopic, ReadLeaderships, ReadLeaderLogs, ReadReplicas
LOST = KafkaStorageException("no answer")


class Interrupted(BaseException):
    """The user has stopped the producer."""


@dataclasses.dataclass(eq=False)
class Sent:
    """A send: the values of each partition, and its outcome."""

    values: dict[int, list[str]]
    answers: dict | None = None
    error: BaseException | None = None

    def done(self, answers, error):
        assert self.answers is None
        assert self.error is None
        self.answers, self.error = answers, error

    def digests(self, partition):
        """The digests of parts of a partition's values: each value is a batch."""
        return lambda parts: ["".join(self.values[partition][part.start : part.stop]) for part in parts]

    def acknowledged(self, partition):
        """The values of a partition, if they were acknowledged."""
        answer = self.answers.get(partition) if self.answers else None
        return self.values[partition] if answer is not None and answer.error is None else []


class World:
    """Three brokers with one log a partition, and a producer. `faults`: the probability of each fault of a step."""

    def __init__(self, seed, faults=0.1, max_in_flight=5):
        self.rng, self.faults, self.now = random.Random(seed), faults, 0.0
        self.logs = {(b, p): PartitionLog(start_chain="0", role=Role(0, FOLLOWER)) for b in BROKERS for p in PARTITIONS}
        self.registrations, self.pending_roles = {}, []
        for p in PARTITIONS:
            self.lead(p, 1 + p, 0)
        self.high_watermarks = dict.fromkeys(PARTITIONS, 0)
        self.sent, self.waiting = [], deque()
        self.identity, self.ids = ProducerIdentity(ProducerIdAndEpoch(1, 0)), 1
        self.pipeline = PipelineRound(self.next_send, max_in_flight, lambda: self.now, 1.0)
        self.segments = 0
        self.most_in_flight = 0

    def lead(self, partition, leader, epoch):
        """Elects a leader. Some logs take up their new roles later."""
        old = self.registrations.get(partition)
        isr = BROKERS if old is None else (*(b for b in BROKERS if b != old.leader), old.leader)
        self.registrations[partition] = PartitionRegistration("t", "id", partition, BROKERS, leader, epoch, isr)
        for broker in BROKERS:
            self.pending_roles.append((broker, partition, Role(epoch, LEADER if broker == leader else FOLLOWER)))

    def take_up(self, all_of_them=False):
        """Logs take up roles, each one's in order."""
        blocked = set()
        for pending in list(self.pending_roles):
            broker, partition, role = pending
            if not all_of_them and ((broker, partition) in blocked or self.rng.random() < 0.3):
                blocked.add((broker, partition))
                continue
            self.pending_roles.remove(pending)
            log = self.logs[broker, partition]
            log.role, log.epoch_start = role, log.log_end_offset

    def replicate(self, partition, all_of_it=False):
        """Followers that know their leader truncate what it lacks, and copy some batches."""
        registration = self.registrations[partition]
        leader = self.logs[registration.leader, partition]
        if not leader.role.leads_at(registration.leader_epoch):
            return
        for broker in BROKERS:
            log = self.logs[broker, partition]
            if broker == registration.leader or not log.role.follows_at(registration.leader_epoch):
                continue
            same = [a.header == b.header for a, b in zip(log.batches, leader.batches, strict=False)]
            agreed = same.index(False) if False in same else len(same)
            log.drop({batch.segment for batch in log.batches[agreed:]})
            missing = leader.batches[agreed:]
            for batch in missing if all_of_it else missing[: self.rng.randrange(3)]:
                log.add(batch.header, f"{broker} {batch.segment}")
        ends = [self.logs[b, partition].log_end_offset for b in BROKERS]
        if all(self.logs[b, partition].role.leader_epoch == registration.leader_epoch for b in BROKERS):
            self.high_watermarks[partition] = max(self.high_watermarks[partition], min(ends))

    # What the producer asks for

    def put(self, counts, seconds):
        number = sum(len(values) for sent in self.sent for values in sent.values.values())
        numbers = iter(range(number, number + sum(counts.values())))
        self.waiting.append(Sent({p: [f"{next(numbers):06}" for _ in range(n)] for p, n in counts.items()}))
        self.sent.append(self.waiting[-1])
        self.waiting[-1].deadline = self.now + seconds

    def next_send(self):
        if not self.waiting:
            return None
        sent = self.waiting.popleft()
        options = SendOptions("a test", ALL, 99, 1000, sent.deadline)
        counts = {p: len(values) for p, values in sent.values.items()}
        work = send_and_acknowledge("t", counts, self.identity, options, lambda: self.now)
        return SendInFlight(work, sent.deadline, partial(self.execute, sent), sent.done)

    def go_on(self, until=lambda: False):
        """Runs the pipeline; after an interruption nothing is in flight any more."""
        try:
            carry_out(self.pipeline.run(until), {StepOf: StepOf.answer, Pause: self.pause})
        except Interrupted as error:
            self.pipeline.abort(error)

    def execute(self, sent, step):
        self.most_in_flight = max(self.most_in_flight, self.pipeline.in_flight)
        if self.rng.random() < self.faults / 20:
            raise Interrupted
        if isinstance(step, READS) and self.rng.random() < self.faults / 2:
            raise LOST
        match step:
            case ReadTopic():
                return TopicSeen(dict(self.registrations), 2)
            case TakeIdentity():
                self.ids += 1
                return ProducerIdAndEpoch(self.ids, 0)
            case AppendToLeaders(appends):
                return [self.append_or_error(sent, each) for each in appends]
            case ReadLeaderships(_, partitions):
                return LeadershipsSeen({p: self.leadership(p) for p in partitions}, 2)
            case ReadLeaderLogs(leader, partitions):
                return {p: self.logs[leader, p.partition].copy() for p in partitions}
            case ReadReplicas():
                return {}

    def append_or_error(self, sent, step):
        try:
            return self.append(sent, step)
        except LakelogException as error:
            return error

    def append(self, sent, step):
        """One commit. It may be refused, or land without an answer; a role may change just before."""
        if self.rng.random() < self.faults:
            raise LOST
        if self.rng.random() < self.faults:
            self.take_up()
        found = {}
        for request in step.requests:
            log = self.logs[step.leader, request.partition]
            try:
                found[request.topic_id_partition] = placed = place(log, request, sent.digests(request.partition))
            except LakelogException as error:
                found[request.topic_id_partition] = error
                continue
            step.note_written([request.topic_id_partition])
            if position := position_of(placed, log.log_end):
                self.write(log, request, position, sent.values[request.partition])
            chain = log.chain_at(placed.last_offset + 1) or ""
            found[request.topic_id_partition] = placed._replace(chain=chain)
        if self.rng.random() < self.faults:
            raise LOST
        return found

    def write(self, log, request, position, values):
        """A batch a record, so that a follower may have only the first ones."""
        for number, value in enumerate(values[position.known :], position.known):
            self.segments += 1
            offset = position.base_offset + number - position.known
            header = BatchHeader(
                "t", "id", request.partition, request.leader_epoch, offset, offset, 0, 1, request.producer_id,
                request.producer_epoch, request.base_sequence + number, digest=value,
            )  # fmt: skip
            log.add(linked(header, log.log_end.chain), f"s{self.segments}")

    def leadership(self, partition):
        registration = self.registrations[partition]
        log, epoch = self.logs[registration.leader, partition], registration.leader_epoch
        if not log.role.leads_at(epoch):
            return Leadership(registration, error=no_leader(registration))
        row = ReplicaStatus(
            "t", "id", partition, registration.leader, 1, epoch, LEADER_ROLE, "Fetching", 0, log.log_end_offset,
            self.high_watermarks[partition], log.lineage, None, 1, chain=log.log_end.chain,
        )  # fmt: skip
        return Leadership(registration, row)

    def pause(self, step):
        """Time passes: others replicate, elect and take up roles. The producer may get more to send."""
        self.now = min(self.now + 1.0, max(self.now, step.deadline))
        for p in PARTITIONS:
            if self.rng.random() < self.faults:
                candidates = [b for b in BROKERS if self.logs[b, p].log_end_offset >= self.high_watermarks[p]]
                self.lead(p, self.rng.choice(candidates), self.registrations[p].leader_epoch + 1)
            self.replicate(p)
        self.take_up()
        is_woken = self.rng.random() < 0.3
        if is_woken and self.faults and len(self.sent) < MOST_SENDS:
            self.put_some()
        return is_woken and bool(self.waiting)

    def put_some(self):
        counts = {p: self.rng.randrange(4) for p in PARTITIONS}
        self.put({p: n for p, n in counts.items() if n}, self.rng.choice([2.0, 6.0, 20.0]))

    def calm(self):
        """No faults any more: all roles are taken up, and all logs are equal."""
        self.faults = 0.0
        self.take_up(all_of_them=True)
        for p in PARTITIONS:
            self.replicate(p, all_of_it=True)

    def values(self, partition):
        """The values in the leader's log."""
        log = self.logs[self.registrations[partition].leader, partition]
        return [batch.header.digest for batch in log.batches]
