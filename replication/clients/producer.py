"""Appends records to the logs of their leaders.

Kafka: `KafkaProducer`, `ReplicaManager.appendRecords`. [AP-02, AP-06]
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from replication.clients.acknowledgement import acknowledge, may_pass
from replication.clients.record_set import Records, RecordSet, record_set
from replication.clients.topic_view import TopicView, pause
from replication.config import Config
from replication.errors import (
    LakelogException,
    LeaderNotAvailableException,
    OutOfOrderSequenceException,
)
from replication.protocol.append import ALL, check_min_isr, parse_acks
from replication.protocol.high_watermark import effective_min_isr
from replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from replication.protocol.producer_state import increment_sequence
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.topic_name import check_not_internal
from replication.storage.append import Appended, PartitionAppend, append
from replication.storage.cluster import Cluster
from replication.storage.producer_table import ProducerIdAndEpoch, new_producer_id

_RETRIES = 2**31 - 1


@dataclass(frozen=True)
class RecordMetadata:
    """Where the records of one partition went: first and last offset, or why they did not.

    Offsets are -1 with acks=0, where nobody waits for an answer, and where nothing was appended. Offsets beside an
    error mean: appended, but not acknowledged; the records may yet be committed.
    """

    topic: str
    partition: int
    records: int
    base_offset: int = -1
    last_offset: int = -1
    leader_epoch: int = -1
    error: LakelogException | None = None


class Producer:
    """An idempotent producer: what it sends again adds nothing that is there already. For one thread at a time.

    `acks`: "all" waits until every in-sync replica has the records, 1 until the leader has, 0 for nothing. Under a
    `name` it fences older producers of that name in every partition that it writes to. `retries`: how often something
    is sent again within the time-out of a send; as in Kafka, practically without limit.
    """

    def __init__(
        self, cluster_uri: str, acks: int | str = "all", name: str | None = None, config: Config | None = None,
        retries: int = _RETRIES,
    ) -> None:  # fmt: skip
        self._acks = parse_acks(acks)
        self._retries = retries
        self._name = name
        self._view = TopicView(Cluster.open(cluster_uri, config))
        self._begin()

    def _begin(self) -> None:
        """Takes a new identity: sequence numbers start over."""
        name = self._name
        self._identity = (
            self._view.cluster.producers.init_producer(name) if name else ProducerIdAndEpoch(new_producer_id(), 0)
        )
        self._who = f"producer {name or self._identity.producer_id}"
        self._sequences: dict[TopicIdPartition, int] = {}
        self._bases: dict[TopicIdPartition, int] = {}
        self._renewed: dict[TopicIdPartition, ProducerIdAndEpoch] = {}

    def send(self, topic: str, records: Records, timeout_ms: int = 30_000) -> dict[int, RecordMetadata]:
        """Appends records and answers, for each partition that got any, its offsets or its error.

        `records` has `value` and optionally `key`, `partition`, `timestamp`, `headers`. Errors that may pass are
        retried until `timeout_ms`. Raises what concerns the records as a whole, before anything is written:
        InvalidRecordException, InvalidPartitionsException, UnknownTopicOrPartitionException, and InvalidTopicException
        for an internal topic.
        """
        check_not_internal(topic, "a producer")
        deadline = time.monotonic() + timeout_ms / 1000
        self._bases = {}
        partitions = self._view.partitions(topic)
        with record_set(topic, records, len(partitions), self._view.cluster.config.log_segment_bytes) as given:
            answers = self._append_until(deadline, topic, given)
            if self._acks == ALL:
                answers = self._acknowledge(topic, given, answers, deadline, timeout_ms)
        if any(answer.error for answer in answers.values()):
            self._begin()  # what became of a failed send is not known for sure, and its sequence is not to be reused
        if self._acks == 0:
            return {p: RecordMetadata(topic, p, count) for p, count in given.counts.items()}
        return dict(sorted(answers.items()))

    def _acknowledge(
        self, topic: str, given: RecordSet, answers: dict[int, RecordMetadata], deadline: float, timeout_ms: int
    ) -> dict[int, RecordMetadata]:
        def send_again(partition: int) -> RecordMetadata:
            (answer,) = self._append_once(topic, given, [partition])
            if self._has_begun_anew(answer.error):
                (answer,) = self._append_once(topic, given, [partition])
            if answer.error is None:
                answers[partition] = answer
            return answer

        again = send_again if self._retries else None
        errors = acknowledge(self._view, topic, answers, deadline, timeout_ms, again)
        return {p: replace(answer, error=errors.get(p, answer.error)) for p, answer in answers.items()}

    def _append_until(self, deadline: float, topic: str, given: RecordSet) -> dict[int, RecordMetadata]:
        """Appends to each leader, and again where an error may pass, until all is settled or the time is over."""
        answers: dict[int, RecordMetadata] = {}
        pending, retries = set(given.counts), self._retries
        while True:
            for answer in self._append_once(topic, given, pending):
                answers[answer.partition] = answer
            pending = {p for p in pending if may_pass(answers[p].error) or self._has_begun_anew(answers[p].error)}
            if not pending or not retries or time.monotonic() >= deadline:
                return answers
            retries -= 1
            pause(self._view.cluster.config.lakelog_poll_interval_ms, deadline)

    def _append_once(self, topic: str, given: RecordSet, partitions: Iterable[int]) -> list[RecordMetadata]:
        registrations = self._view.partitions(topic)
        answers: list[RecordMetadata] = []
        by_leader: dict[int, list[PartitionRegistration]] = {}
        for partition in sorted(partitions):
            try:
                self._check(registrations[partition])
                by_leader.setdefault(registrations[partition].leader, []).append(registrations[partition])
            except LakelogException as error:
                answers.append(RecordMetadata(topic, partition, given.counts[partition], error=error))
        for leader, led in by_leader.items():
            answers += self._append_to(leader, led, given)
        return answers

    def _check(self, registration: PartitionRegistration) -> None:
        topic, partition = registration.topic, registration.partition
        if registration.leader == NO_LEADER:
            raise LeaderNotAvailableException(f"{topic}-{partition}: no leader; replicas are {registration.replicas}")
        needed = effective_min_isr(self._view.config(topic).min_insync_replicas, len(registration.replicas))
        check_min_isr(self._acks, len(registration.isr), needed, topic, partition)

    def _append_to(self, leader: int, led: list[PartitionRegistration], given: RecordSet) -> list[RecordMetadata]:
        requests = [self._request(registration, given.counts[registration.partition]) for registration in led]
        outcomes: Mapping[TopicIdPartition, Appended | LakelogException]
        try:
            log = self._view.log(leader)
            outcomes = append(log, requests, given.writer(log.root, leader, requests), self._who)
        except LakelogException as error:
            outcomes = dict.fromkeys((request.topic_id_partition for request in requests), error)
        return [self._answer(request, outcomes[request.topic_id_partition]) for request in requests]

    def _request(self, registration: PartitionRegistration, records: int) -> PartitionAppend:
        """What is sent again has the sequence that it had: only so can a log tell it from something new."""
        partition = registration.topic_id_partition
        base = self._bases.setdefault(partition, self._sequences.get(partition, 0))
        return PartitionAppend(
            registration.topic, registration.topic_id, registration.partition, registration.replicas,
            registration.leader_epoch, records, *self._renewed.get(partition, self._identity),
            base_sequence=base,
        )  # fmt: skip

    def _answer(self, request: PartitionAppend, outcome: Appended | LakelogException) -> RecordMetadata:
        answer = RecordMetadata(request.topic, request.partition, request.records, leader_epoch=request.leader_epoch)
        if isinstance(outcome, LakelogException):
            if self._has_begun_anew(outcome):
                self._renewed[request.topic_id_partition] = ProducerIdAndEpoch(new_producer_id(), 0)
                self._bases[request.topic_id_partition] = 0
            return replace(answer, error=outcome)
        self._sequences[request.topic_id_partition] = increment_sequence(request.base_sequence, request.records)
        epoch = request.leader_epoch if outcome.leader_epoch is None else outcome.leader_epoch
        return replace(answer, base_offset=outcome.base_offset, last_offset=outcome.last_offset, leader_epoch=epoch)

    def _has_begun_anew(self, error: LakelogException | None) -> bool:
        """A leader that lacks what was sent before, as after an unclean election, gets a sequence that starts over.

        Under a name it does not, as that would fence a newer producer of this name. KIP-360."""
        return isinstance(error, OutOfOrderSequenceException) and not self._name


def raise_first_error(answers: Mapping[int, RecordMetadata]) -> None:
    """For callers who want all or an error: raises the first partition's error, if there is one."""
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
