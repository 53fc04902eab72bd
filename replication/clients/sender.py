"""One send: records go to the leaders of their partitions, and again where an error may pass, until all is settled.

Kafka: `Sender`, `ReplicaManager.appendRecords`. [AP-02, AP-06, AP-07]
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from replication.clients.acknowledgement import acknowledge, may_pass
from replication.clients.producer_identity import ProducerIdentity
from replication.clients.record_set import RecordSet
from replication.clients.topic_view import TopicView, pause
from replication.errors import (
    LakelogException,
    LeaderNotAvailableException,
    OutOfOrderSequenceException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from replication.protocol.append import ALL, Appended, PartitionAppend, check_min_isr
from replication.protocol.high_watermark import effective_min_isr
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.append import Positions, SegmentWriter, append
from replication.storage.segment import Segment


@dataclass(frozen=True)
class RecordMetadata:
    """Where the records of one partition went: first and last offset, or why they did not.

    Offsets are -1 with acks=0, where nobody waits for an answer, and where nothing was appended. Offsets beside an
    error mean: appended, but not acknowledged; the records may yet be committed. Between first and last offset there
    are records of others too where a new leader had only a part of the records, and the rest was appended there.
    `chain` is the hash of the partition's log up to the last record: a log with that chain has these very records.
    """

    topic: str
    partition: int
    records: int
    base_offset: int = -1
    last_offset: int = -1
    leader_epoch: int = -1
    error: LakelogException | None = None
    chain: str = ""


class SendOptions(NamedTuple):
    """How a producer sends: `retries` is how often something is sent again; the deadline is of the monotonic clock."""

    who: str
    acks: int
    retries: int
    timeout_ms: int
    deadline: float


class Sender:
    """Sends the records of one send."""

    def __init__(
        self, view: TopicView, topic: str, given: RecordSet, identity: ProducerIdentity, options: SendOptions
    ) -> None:
        self._view = view
        self._topic = topic
        self._given = given
        self._identity = identity
        self._options = options
        self._begun_anew: set[int] = set()
        identity.begin_send()

    def run(self) -> dict[int, RecordMetadata]:
        """What has become of the records of each partition."""
        answers = self._append_until()
        if self._options.acks == ALL:
            return self._acknowledge(answers)
        return answers

    def _acknowledge(self, answers: dict[int, RecordMetadata]) -> dict[int, RecordMetadata]:
        def send_again(partition: int) -> RecordMetadata:
            (answer,) = self._append_once([partition])
            if answer.error is None:
                answers[partition] = answer
            return answer

        options = self._options
        again = send_again if options.retries else None
        errors = acknowledge(self._view, self._topic, answers, options.deadline, options.timeout_ms, again)
        return {p: replace(answer, error=errors.get(p, answer.error)) for p, answer in answers.items()}

    def _append_until(self) -> dict[int, RecordMetadata]:
        """Appends to each leader, and again where an error may pass, until all is settled or the time is over. To wait
        for a leader is no retry: nothing is sent meanwhile. Kafka: `RecordAccumulator.ready`, unknownLeaderTopics."""
        answers: dict[int, RecordMetadata] = {}
        pending, retries = set(self._given.counts), self._options.retries
        while True:
            for answer in self._append_once(pending):
                answers[answer.partition] = answer
            pending = {p for p in pending if may_pass(answers[p].error) or p in self._begun_anew}
            self._begun_anew.clear()
            unsent = {p for p in pending if isinstance(answers[p].error, LeaderNotAvailableException)}
            if not retries:
                pending = unsent
            if not pending:
                return answers
            if time.monotonic() >= self._options.deadline:
                return {p: self._expired(answer) for p, answer in answers.items()}
            if pending != unsent:
                retries -= 1
            pause(self._view.cluster.config.lakelog_poll_interval_ms, self._options.deadline)

    def _expired(self, answer: RecordMetadata) -> RecordMetadata:
        """Records that never met a leader have expired; other errors say more than that. Kafka: `ProducerBatch`."""
        error = answer.error
        if not isinstance(error, LeaderNotAvailableException):
            return answer
        expired = TimeoutException(
            f"{answer.topic}-{answer.partition}: {answer.records} records were not appended within "
            f"{self._options.timeout_ms} ms; the last error was {error.name}: {error}"
        )
        expired.__cause__ = error
        return replace(answer, error=expired)

    def _append_once(self, partitions: Collection[int]) -> list[RecordMetadata]:
        try:
            registrations = self._view.partitions(self._topic)
        except LakelogException as error:  # it may be readable again before the time is over
            return [self._refused(partition, error) for partition in partitions]
        answers: list[RecordMetadata] = []
        by_leader: dict[int, list[PartitionRegistration]] = {}
        for partition in sorted(partitions):
            try:
                registration = self._check(registrations.get(partition), partition)
                by_leader.setdefault(registration.leader, []).append(registration)
            except LakelogException as error:
                answers.append(self._refused(partition, error))
        for leader, led in by_leader.items():
            answers += self._append_to(leader, led)
        return answers

    def _refused(self, partition: int, error: LakelogException) -> RecordMetadata:
        return RecordMetadata(self._topic, partition, self._given.counts[partition], error=error)

    def _check(self, registration: PartitionRegistration | None, partition: int) -> PartitionRegistration:
        if registration is None:
            raise UnknownTopicOrPartitionException(f"{self._topic}-{partition}: no such partition any more")
        if registration.leader == NO_LEADER:
            raise LeaderNotAvailableException(
                f"{self._topic}-{partition}: no leader; replicas are {registration.replicas}"
            )
        needed = effective_min_isr(self._view.config(self._topic).min_insync_replicas, len(registration.replicas))
        check_min_isr(self._options.acks, len(registration.isr), needed, self._topic, partition)
        return registration

    def _append_to(self, leader: int, led: Sequence[PartitionRegistration]) -> list[RecordMetadata]:
        requests = [self._request(registration) for registration in led]
        outcomes: Mapping[TopicIdPartition, Appended | LakelogException]
        try:
            log = self._view.log(leader)
            write = self._noting(self._given.writer(log.root, leader, requests))
            outcomes = append(log, requests, write, self._options.who, self._options.deadline)
        except LakelogException as error:
            outcomes = dict.fromkeys((request.topic_id_partition for request in requests), error)
        return [self._answer(request, outcomes[request.topic_id_partition]) for request in requests]

    def _noting(self, write: SegmentWriter) -> SegmentWriter:
        def noted(positions: Positions) -> Sequence[Segment]:
            self._identity.writes(positions)
            return write(positions)

        return noted

    def _request(self, registration: PartitionRegistration) -> PartitionAppend:
        producer_id, producer_epoch, base_sequence = self._identity.sequence(registration.topic_id_partition)
        return PartitionAppend(
            registration.topic, registration.topic_id, registration.partition, registration.replicas,
            registration.leader_epoch, self._given.counts[registration.partition], producer_id, producer_epoch,
            base_sequence,
        )  # fmt: skip

    def _answer(self, request: PartitionAppend, outcome: Appended | LakelogException) -> RecordMetadata:
        answer = RecordMetadata(request.topic, request.partition, request.records, leader_epoch=request.leader_epoch)
        if isinstance(outcome, LakelogException):
            is_out_of_order = isinstance(outcome, OutOfOrderSequenceException)
            if is_out_of_order and self._identity.begin_anew(request.topic_id_partition):
                self._begun_anew.add(request.partition)
            return replace(answer, error=outcome)
        self._identity.appended(request.topic_id_partition, request.records)
        epoch = request.leader_epoch if outcome.leader_epoch is None else outcome.leader_epoch
        return replace(
            answer, base_offset=outcome.base_offset, last_offset=outcome.last_offset, leader_epoch=epoch,
            chain=outcome.chain,
        )  # fmt: skip
