"""acks=all: waits until records are acknowledged, and explains why if they are not in time.

Kafka: `DelayedProduce`. The decision is in `delayed_operation.produce_outcome`. [AP-07]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from lakelog.replication.errors import (
    LakelogException,
    NotEnoughReplicasAfterAppendException,
    NotLeaderOrFollowerException,
    TimeoutException,
)
from lakelog.replication.protocol.append import ALL
from lakelog.replication.protocol.delayed_operation import DONE, Completion
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.producer_identity import ProducerIdentity
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import Leadership, ReplicaStatus
from lakelog.replication.protocol.rounds.send_round import (
    SEND_RULES,
    LeadershipsSeen,
    Pause,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    RecordMetadata,
    Round,
    SendOptions,
    SendRound,
    SendRules,
    is_retriable,
)

_RETRIED = NotLeaderOrFollowerException, NotEnoughReplicasAfterAppendException


class Settled(NamedTuple):
    """The result for a partition's records: an error, or None if they are acknowledged."""

    error: LakelogException | None = None


class AcknowledgeRound:
    """Waits until appended records are acknowledged.

    `send`: the round that has appended them; it sends records again under the same sequences. None if nothing may be
    sent again.
    `clock`: monotonic, in seconds.
    """

    def __init__(
        self, topic: str, appended: Mapping[int, RecordMetadata], options: SendOptions, clock: Callable[[], float],
        send: SendRound | None, rules: SendRules = SEND_RULES,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._records = {p: records for p, records in appended.items() if records.error is None}
        self._options = options
        self._clock = clock
        self._send = send
        self._rules = rules
        self._seen = LeadershipsSeen({}, 1)
        self._read_error: LakelogException | None = None
        self._is_backoff = False  # whether another attempt has failed since the last poll
        self._logs: dict[TopicIdPartition, PartitionLog | LakelogException] = {}

    def run(self) -> Round[dict[int, RecordMetadata]]:
        """Waits until the HW is above all appended records; returns their offsets, and the error of each failed
        partition.

        If a new leader's log lacks records, they are sent to it again, without duplicates. This counts as a retry. If
        the ISR has become too small, it may grow again: Kafka's producer repeats the send, and the leader recognises
        what it has.
        Errors in the result: TimeoutException names the replicas that lack records.
        NotEnoughReplicasAfterAppendException: the ISR has become too small, and nothing is tried again, or the time is
        over. NotLeaderOrFollowerException: the new leader lacks the records, and they may not be sent again. Any other
        error of a read or of another attempt that is not retriable.
        """
        errors: dict[int, LakelogException | None] = {}
        waiting = sorted(self._records)
        while waiting:
            yield from self._poll(tuple(waiting))
            self._is_backoff, time_is_over = False, self._clock() >= self._options.deadline
            for partition in list(waiting):
                settled = yield from self._attempt(partition, time_is_over)
                if settled is not None:
                    errors[partition] = settled.error
                    waiting.remove(partition)
            if waiting:
                yield Pause(self._options.deadline, is_backoff=self._is_backoff)
        return {p: replace(records, error=errors[p]) for p, records in self._records.items()}

    def _poll(self, partitions: tuple[int, ...]) -> Round[None]:
        """If the metadata cannot be read, keeps what was seen last and stores the error in `_read_error`."""
        self._logs = {}
        try:
            self._seen, self._read_error = (yield ReadLeaderships(self._topic, partitions)), None
        except LakelogException as error:
            self._read_error = error

    def _attempt(self, partition: int, time_is_over: bool) -> Round[Settled | None]:
        """Settles a partition by the last poll. Returns None while it has to wait; once the time is over, it is
        settled."""
        seen, records = self._seen.partitions.get(partition), self._records[partition]
        if seen is None:
            return Settled((yield from self._timeout(records, None))) if time_is_over else None
        if seen.error:  # the leader's root is unreadable now; another broker may lead soon
            return Settled(seen.error) if time_is_over or not seen.error.retriable else None
        outcome = self._outcome(seen, records, time_is_over)
        try:
            if outcome == DONE and not (yield from self._is_in_the_log(seen, records)):
                outcome = Completion(True, NotLeaderOrFollowerException)
        except LakelogException as error:  # the leader's log is unreadable, or is not the one that its row describes
            if not error.retriable:
                return Settled(error)
            return Settled((yield from self._timeout(records, seen, error))) if time_is_over else None
        if outcome.error in _RETRIED and self._send and self._send.may_retry(partition) and not time_is_over:
            return (yield from self._retry(partition, outcome.error, self._send))
        if outcome.error is TimeoutException:
            return Settled((yield from self._timeout(records, seen)))
        if outcome.error:
            return Settled(outcome.error(self._explain(outcome.error, seen.registration, records)))
        return Settled() if outcome.is_done else None

    def _outcome(self, seen: Leadership, records: RecordMetadata, time_is_over: bool) -> Completion:
        """The outcome by the leader's row. A topic that was made again since lacks the records."""
        registration = seen.registration
        if registration.topic_id != records.topic_id:
            return Completion(True, NotLeaderOrFollowerException)
        return self._rules.produce_outcome(
            seen.leader_row, records.leader_epoch, records.last_offset, len(registration.isr),
            self._min_isr(registration), time_is_over,
        )  # fmt: skip

    def _is_in_the_log(self, seen: Leadership, records: RecordMetadata) -> Round[bool]:
        """Whether the leader's log has these very records.

        Equal offsets and epochs do not prove it. If the log has lost its end, other records may be at these offsets,
        and the HW may be above them. So the chain is compared. Raises the error of the read, or of `check_log_leads`.
        """
        partition = seen.registration.topic_id_partition
        if partition not in self._logs:
            led = [s for s in self._seen.partitions.values() if s.registration.leader == seen.registration.leader]
            wanted = tuple(s.registration.topic_id_partition for s in led)
            self._logs.update((yield ReadLeaderLogs(seen.registration.leader, wanted)))
        log = self._logs[partition]
        if isinstance(log, LakelogException):
            raise log
        if seen.leader_row:  # always true here: an outcome DONE needs the row
            self._rules.check_log_leads(log, seen.leader_row, records.name)
        return self._rules.has_records(log, records.last_offset + 1, records.chain)

    def _retry(
        self, partition: int, error: type[LakelogException] | None, send: SendRound
    ) -> Round[Settled | None]:  # fmt: skip
        """Sends again what the new leader lacks. Only an error that is not retriable settles the partition; otherwise
        the next polls decide."""
        if error is NotEnoughReplicasAfterAppendException:  # the leader's log has the records, so to wait will do
            self._is_backoff = True
            return None
        answer = yield from send.retry(partition)
        if answer is None:
            return None
        if answer.error is None:
            self._records[partition] = answer
            return None
        if not is_retriable(answer.error):
            return Settled(answer.error)
        self._is_backoff = self._is_backoff or send.was_sent(answer)
        return None

    def _min_isr(self, registration: PartitionRegistration) -> int:
        return effective_min_isr(self._seen.min_insync_replicas, len(registration.replicas))

    def _explain(
        self, error: type[LakelogException], registration: PartitionRegistration, records: RecordMetadata
    ) -> str:  # fmt: skip
        if error is NotLeaderOrFollowerException:
            return (
                f"{records.name}: {_offsets(records)} of leader epoch {records.leader_epoch} are not in the log of "
                f"leader {registration.leader} (epoch {registration.leader_epoch})"
            )
        return (
            f"{records.name}: appended, but the ISR {registration.isr} has become smaller than min.insync.replicas "
            f"({self._min_isr(registration)})"
        )

    def _timeout(
        self, records: RecordMetadata, seen: Leadership | None, error: LakelogException | None = None
    ) -> Round[TimeoutException]:  # fmt: skip
        """The timeout error. Its `__cause__` is the error behind it: a table is unreadable, or the partition has no
        leader."""
        cause = error or self._read_error or (seen.unavailable if seen else None)
        replicas = f"all of the ISR {seen.registration.isr}" if seen else "the ISR"
        lacking = [f"the last error was {cause.name}: {cause}"] if cause else []
        lacking += [(yield from _lacking(seen.registration, records.last_offset))] if seen else []
        timeout = TimeoutException(
            f"{records.name}: {_offsets(records)} were appended but not acknowledged by {replicas} within "
            f"{self._options.timeout_ms} ms: {'; '.join(lacking)}"
        )
        timeout.__cause__ = cause
        return timeout


def _offsets(records: RecordMetadata) -> str:
    return f"offsets {records.base_offset} to {records.last_offset}"


def _lacking(registration: PartitionRegistration, last_offset: int) -> Round[str]:
    parts = []
    for broker in (b for b in registration.isr if b != registration.leader):
        try:
            rows: Mapping[TopicIdPartition, ReplicaStatus] = yield ReadReplicas(broker)
        except LakelogException as error:
            parts.append(f"broker {broker} cannot be read ({error})")
            continue
        row = rows.get(registration.topic_id_partition)
        end = row.log_end_offset if row else 0
        if end <= last_offset:
            parts.append(f"broker {broker} ends at {end}" + (f" ({row.error})" if row and row.error else ""))
    leads = registration.leader not in (NO_LEADER, LEADER_DURING_DELETE)
    raised = f"leader {registration.leader} has not raised" if leads else "no leader has raised"
    return "; ".join(parts) or f"all have them, but {raised} the high watermark"


def send_and_acknowledge(
    topic: str, counts: Mapping[int, int], identity: ProducerIdentity, options: SendOptions,
    clock: Callable[[], float], rules: SendRules = SEND_RULES,
) -> Round[dict[int, RecordMetadata]]:  # fmt: skip
    """One send, with its acknowledgement if acks is all; returns the offsets or the error of each partition.

    It is in flight from its first step to its end, also if it ends by an error or is closed in the middle of a step.
    """
    sequences = identity.begin_send(topic, counts)
    answers: dict[int, RecordMetadata] = {}
    try:
        send = SendRound(topic, counts, sequences, options, clock, rules)
        appended = yield from send.run()
        if options.acks == ALL:
            appended.update((yield from AcknowledgeRound(topic, appended, options, clock, send, rules).run()))
        answers = appended
        return answers
    finally:
        sequences.settle([partition for partition, answer in answers.items() if answer.error is None])
