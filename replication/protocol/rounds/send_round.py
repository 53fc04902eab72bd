"""One send: appends records to the leaders of their partitions, and retries until every partition has a final answer.

Kafka: `Sender`, `ReplicaManager.appendRecords`. [AP-02, AP-06, AP-07]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import (
    FencedLeaderEpochException,
    KafkaStorageException,
    LakelogException,
    LeaderNotAvailableException,
    OutOfOrderSequenceException,
    RetriableException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol import append, delayed_operation
from lakelog.replication.protocol.append import Appended, PartitionAppend
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.producer_identity import SendSequences, Turn
from lakelog.replication.protocol.record_batch import OfPartition, TopicIdPartition
from lakelog.replication.protocol.replica_status import Leadership, ReplicaStatus, no_leader
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.carry_out import Result


class ReadTopic(NamedTuple):
    """Reads the metadata of a topic. Answer: `TopicSeen`."""

    topic: str


class TopicSeen(NamedTuple):
    """A topic's partitions by number, and its `min.insync.replicas`."""

    partitions: Mapping[int, PartitionRegistration]
    min_insync_replicas: int


class AppendToLeader(NamedTuple):
    """One commit on a leader's log: appends the records of these requests that are new and that the leader accepts.

    Answer: `Appended` or the error of each partition; or one error, after which nobody knows whether the commit has
    landed. The handler calls `note_written` with the partitions before it writes any of their records.
    """

    leader: int
    requests: tuple[PartitionAppend, ...]
    note_written: Callable[[Iterable[TopicIdPartition]], None]


class AppendToLeaders(NamedTuple):
    """Appends to leaders, to all at the same time. Answer: that of each append, in their order."""

    appends: tuple[AppendToLeader, ...]


class TakeIdentity(NamedTuple):
    """Takes a new id or epoch for the producer, until the deadline on the monotonic clock, in seconds. Answer:
    `ProducerIdAndEpoch`."""

    deadline: float


class ReadLeaderships(NamedTuple):
    """Reads the metadata, then the leaders' rows. Answer: `LeadershipsSeen`."""

    topic: str
    partitions: tuple[int, ...]


class LeadershipsSeen(NamedTuple):
    """The partitions that exist, by number, and the topic's `min.insync.replicas`."""

    partitions: Mapping[int, Leadership]
    min_insync_replicas: int


class ReadLeaderLogs(NamedTuple):
    """Reads a leader's log up to its newest commit. Answer: the log of each partition, or the error of reading it."""

    leader: int
    partitions: tuple[TopicIdPartition, ...]


class ReadReplicas(NamedTuple):
    """Reads a broker's `replicas`. Answer: its rows by partition."""

    broker: int


class Pause(NamedTuple):
    """Waits for a poll interval, but not beyond the deadline on the monotonic clock, in seconds. Answer: whether it was
    cut short because another send can begin.

    `is_backoff`: another attempt follows, of which there may be few. Otherwise a poll follows, and a commit may end the
    pause early.
    """

    deadline: float
    is_backoff: bool = False


SendStep: TypeAlias = (
    ReadTopic | TakeIdentity | AppendToLeaders | ReadLeaderships | ReadLeaderLogs | ReadReplicas | Pause
)  # fmt: skip

Round: TypeAlias = carry_out.Round[SendStep, Result]


@dataclass(frozen=True, repr=False)
class RecordMetadata(OfPartition):
    """Where the records of one partition were appended, or the error.

    Offsets are -1 if nothing was appended. With acks=0 they are always -1, and there is no error. Offsets with an error
    mean that the records are appended but not acknowledged; they may still be committed. If a new leader had only a
    part of the records and appended the rest, records of other producers may lie between the two offsets. `chain`: the
    chain after the last record; a log with it has these very records. `topic_id`: a topic that is made again under the
    same name has another id.
    """

    topic: str
    partition: int
    records: int
    base_offset: int = -1
    last_offset: int = -1
    leader_epoch: int = -1
    error: LakelogException | None = None
    chain: str = ""
    topic_id: str = ""

    def __repr__(self) -> str:
        """The error first: `send` raises none, and a notebook shows its answers."""
        shown = ("topic", "partition", "records", "base_offset", "last_offset", "leader_epoch")
        names = shown if self.error is None else ("error", *shown)
        return f"RecordMetadata({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class SendOptions(NamedTuple):
    """How a producer sends. `who`: its name in the commits. `retries`: how often the records of each partition are sent
    again. `timeout_ms`: for error texts, in ms. `deadline`: on the monotonic clock, in seconds."""

    who: str
    acks: int
    retries: int
    timeout_ms: int
    deadline: float


@dataclass(frozen=True)
class SendRules:
    """The rules of a send, as fields, so that the simulation can replace one."""

    check_min_isr: Callable[[int, int, int, str, int], None] = append.check_min_isr
    produce_outcome: Callable[[ReplicaStatus | None, int, int, int, int, bool], delayed_operation.Completion] = (
        delayed_operation.produce_outcome
    )
    check_log_leads: Callable[[PartitionLog, ReplicaStatus, str], None] = delayed_operation.check_log_leads
    has_records: Callable[[PartitionLog, int, str], bool] = delayed_operation.has_records


SEND_RULES = SendRules()


class SendRound:
    """Appends the records of one send. `counts`: records of each partition. `clock`: monotonic, in seconds."""

    def __init__(
        self, topic: str, counts: Mapping[int, int], sequences: SendSequences, options: SendOptions,
        clock: Callable[[], float], rules: SendRules = SEND_RULES,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._counts = counts
        self._sequences = sequences
        self._options = options
        self._clock = clock
        self._rules = rules
        self._retries = dict.fromkeys(counts, options.retries)  # what is left. Kafka: ProducerBatch.attempts
        self._refusals: dict[int, LakelogException] = {}  # the last error of each partition that was out of order
        self._is_unread = False  # whether the last poll of the metadata failed

    def run(self) -> Round[dict[int, RecordMetadata]]:
        """Appends, and retries until every partition has a final answer or the time is over; returns the answers.

        Waiting for the metadata, for a leader or for earlier sends is no retry, because nothing is sent meanwhile.
        Kafka: `RecordAccumulator.ready`, unknownLeaderTopics. Raises the error of taking a new identity, if nothing was
        sent before.
        """
        answers: dict[int, RecordMetadata] = {}
        pending = set(self._counts)
        while True:
            for answer in (yield from self.append(pending)):
                answers[answer.partition] = answer
            pending = {p for p in pending if p not in answers or is_retriable(answers[p].error)}
            sent = {p for p in pending if self.was_sent(answers.get(p))}
            pending = {p for p in pending if p not in sent or self.may_retry(p)}
            if not pending:
                return answers
            if self._clock() >= self._options.deadline:
                late = {p: self._waiting_answer(p) for p in pending if p not in answers}
                return {p: self._expired(answer) for p, answer in {**answers, **late}.items()}
            again = pending & sent
            for partition in again:
                self._retries[partition] -= 1
            yield Pause(self._options.deadline, is_backoff=bool(again))

    def may_retry(self, partition: int) -> bool:
        """Whether the partition has retries left."""
        return self._retries[partition] > 0

    def retry(self, partition: int) -> Round[RecordMetadata | None]:
        """Sends the records of a partition again, once; returns None while earlier sends come first. As in `run`, it is
        no retry if nothing was sent."""
        found = yield from self.append([partition])
        answer = found[0] if found else None
        if self.was_sent(answer):
            self._retries[partition] -= 1
        return answer

    def was_sent(self, answer: RecordMetadata | None) -> bool:
        """Whether the last attempt, which had this answer, has sent the records."""
        return not (self._is_unread or answer is None or isinstance(answer.error, LeaderNotAvailableException))

    def append(self, partitions: Collection[int]) -> Round[list[RecordMetadata]]:
        """Sends the records of these partitions to their leaders, once. Errors are in the answers. A partition whose
        turn has not come gets no answer."""
        self._is_unread = False
        try:
            seen: TopicSeen = yield ReadTopic(self._topic)
        except LakelogException as error:  # the metadata may be readable again before the time is over
            self._is_unread = isinstance(error, KafkaStorageException)
            return [self._refused(partition, error) for partition in partitions]
        answers: list[RecordMetadata] = []
        found: list[PartitionRegistration] = []
        for partition in sorted(partitions):
            try:
                found.append(self._check_may_send(seen, partition))
            except LakelogException as error:
                answers.append(self._refused(partition, error))
        try:
            ready = yield from self._whose_turn_it_is(found)
        except LakelogException as error:
            if not self._sequences.is_written:
                raise
            return [*answers, *(self._refused(registration.partition, error) for registration in found)]
        return [*answers, *(yield from self._append_to_leaders(ready))]

    def _whose_turn_it_is(self, found: Sequence[PartitionRegistration]) -> Round[list[PartitionRegistration]]:
        turns = [self._sequences.turn(registration.topic_id_partition) for registration in found]
        if Turn.NEEDS_IDENTITY in turns:
            self._sequences.identity.renew((yield TakeIdentity(self._options.deadline)))
            turns = [self._sequences.turn(registration.topic_id_partition) for registration in found]
        return [registration for registration, turn in zip(found, turns, strict=True) if turn is Turn.NOW]

    def _waiting_answer(self, partition: int) -> RecordMetadata:
        earlier = LeaderNotAvailableException("earlier sends of this producer to the partition come first")
        return self._refused(partition, self._refusals.get(partition, earlier))

    def _expired(self, answer: RecordMetadata) -> RecordMetadata:
        """Turns an error without a leader into a timeout; other errors say more. Kafka: `ProducerBatch`."""
        error = answer.error
        if not isinstance(error, LeaderNotAvailableException | OutOfOrderSequenceException):
            return answer
        is_unknown = self._sequences.is_written_to(answer.partition)
        outcome = "may be in a log, but were not acknowledged" if is_unknown else "were not appended"
        expired = TimeoutException(
            f"{answer.name}: {answer.records} records {outcome} within {self._options.timeout_ms} ms; the last error "
            f"was {error.name}: {error}"
        )
        expired.__cause__ = error
        return replace(answer, error=expired)

    def _refused(self, partition: int, error: LakelogException) -> RecordMetadata:
        return RecordMetadata(self._topic, partition, self._counts[partition], error=error)

    def _check_may_send(self, seen: TopicSeen, partition: int) -> PartitionRegistration:
        registration = seen.partitions.get(partition)
        if registration is None:
            raise UnknownTopicOrPartitionException(f"{self._topic}-{partition}: no such partition any more")
        if registration.leader == NO_LEADER:
            raise no_leader(registration)
        needed = effective_min_isr(seen.min_insync_replicas, len(registration.replicas))
        self._rules.check_min_isr(self._options.acks, len(registration.isr), needed, self._topic, partition)
        return registration

    def _append_to_leaders(self, ready: Sequence[PartitionRegistration]) -> Round[list[RecordMetadata]]:
        """Appends to the leaders of these partitions, to all at the same time."""
        requests: dict[int, list[PartitionAppend]] = {}
        for registration in ready:
            partition = registration.topic_id_partition
            request = PartitionAppend(
                registration.topic, registration.topic_id, registration.partition, registration.replicas,
                registration.leader_epoch, self._counts[registration.partition], *self._sequences.sequence(partition),
                self._sequences.follows(partition),
            )  # fmt: skip
            requests.setdefault(registration.leader, []).append(request)
        appends = tuple(
            AppendToLeader(leader, tuple(its_requests), self._sequences.note_written)
            for leader, its_requests in requests.items()
        )
        outcomes: Sequence[Mapping[TopicIdPartition, Appended | LakelogException] | LakelogException]
        outcomes = (yield AppendToLeaders(appends)) if appends else []
        answers = [
            self._answer(request, found if isinstance(found, LakelogException) else found[request.topic_id_partition])
            for each, found in zip(appends, outcomes, strict=True)
            for request in each.requests
        ]
        return [answer for answer in answers if answer is not None]

    def _answer(self, request: PartitionAppend, outcome: Appended | LakelogException) -> RecordMetadata | None:
        answer = RecordMetadata(
            request.topic, request.partition, request.records, leader_epoch=request.leader_epoch,
            topic_id=request.topic_id,
        )  # fmt: skip
        if isinstance(outcome, LakelogException):
            is_out_of_order = isinstance(outcome, OutOfOrderSequenceException)
            if is_out_of_order and self._sequences.note_out_of_order(request.topic_id_partition):
                self._refusals[request.partition] = outcome
                return None
            return replace(answer, error=outcome)
        self._sequences.note_appended(request.topic_id_partition, request.records)
        epoch = request.leader_epoch if outcome.leader_epoch is None else outcome.leader_epoch
        return replace(
            answer, base_offset=outcome.base_offset, last_offset=outcome.last_offset, leader_epoch=epoch,
            chain=outcome.chain,
        )  # fmt: skip


def is_retriable(error: LakelogException | None) -> bool:
    """Whether to send again. A fenced epoch is retriable, because the metadata names the new leader."""
    return isinstance(error, RetriableException | FencedLeaderEpochException)
