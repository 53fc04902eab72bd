"""acks=all: when records count as acknowledged, and what to say when they do not in time.

Kafka: `DelayedProduce`. The decision is in `delayed_operation.produce_outcome`. [AP-07]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from replication.errors import LakelogException, NotLeaderOrFollowerException, TimeoutException
from replication.protocol.append import ALL
from replication.protocol.delayed_operation import DONE, Outcome
from replication.protocol.high_watermark import effective_min_isr
from replication.protocol.partition_leader import Leadership
from replication.protocol.partition_log import PartitionLog
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.producer_identity import ProducerIdentity
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.send_round import SEND_RULES, RecordMetadata, SendOptions, SendRound, SendRules, may_pass
from replication.protocol.send_steps import (
    AwaitTables,
    LeadershipsSeen,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    Round,
)

SendAgain = Callable[[int], Round[RecordMetadata]]
Found = PartitionLog | LakelogException


class AcknowledgeRound:
    """Waits for what was appended. `send_again` sends the records of a partition once more, under the same sequence
    numbers; None where nothing is sent again. `clock`: monotonic, in seconds."""

    def __init__(
        self, topic: str, appended: Mapping[int, RecordMetadata], options: SendOptions, clock: Callable[[], float],
        send_again: SendAgain | None, rules: SendRules = SEND_RULES,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._records = {p: records for p, records in appended.items() if records.error is None}
        self._options = options
        self._clock = clock
        self._send_again = send_again
        self._rules = rules
        self._seen = LeadershipsSeen({}, 1)
        self._unseen: LakelogException | None = None
        self._logs: dict[TopicIdPartition, Found] = {}

    def run(self) -> Round[dict[int, RecordMetadata]]:
        """Waits until the HW has passed all that was appended; answers what was appended where, and the error of each
        partition where the HW has not passed it.

        What a new leader's log does not hold is sent to it again, so that nothing is there twice. TimeoutException says
        which replicas lack what; NotEnoughReplicasAfterAppendException, that the ISR has become too small;
        NotLeaderOrFollowerException, that a new leader's history does not hold the records and nobody sends them again.
        """
        errors: dict[int, LakelogException] = {}
        waiting = sorted(self._records)
        while waiting:
            yield from self._look(tuple(waiting))
            time_is_over = self._clock() >= self._options.deadline
            for partition in list(waiting):
                outcome = yield from self._attempt(partition, time_is_over)
                if isinstance(outcome, LakelogException):
                    errors[partition] = outcome
                if outcome is not None:
                    waiting.remove(partition)
            if waiting:
                yield AwaitTables(self._options.deadline)
        return {p: _with(records, errors.get(p)) for p, records in self._records.items()}

    def _look(self, partitions: tuple[int, ...]) -> Round[None]:
        """Where the metadata cannot be read, what was seen last holds, and `_unseen` says why it is not newer."""
        self._logs = {}
        try:
            self._seen, self._unseen = (yield ReadLeaderships(self._topic, partitions)), None
        except LakelogException as error:
            self._unseen = error

    def _attempt(self, partition: int, time_is_over: bool) -> Round[LakelogException | bool | None]:
        """What one look tells of a partition: its error, True once it is acknowledged, None as long as it waits."""
        seen, records = self._seen.partitions.get(partition), self._records[partition]
        if seen is None:
            return (yield from self._timeout(records, None)) if time_is_over else None
        if seen.error:  # its root cannot be read now; another broker may be leader soon
            return seen.error if time_is_over or not seen.error.retriable else None
        outcome = self._rules.produce_outcome(
            seen.leader_row, records.leader_epoch, records.last_offset, len(seen.registration.isr),
            self._min_isr(seen.registration), time_is_over,
        )  # fmt: skip
        try:
            if outcome == DONE and not (yield from self._is_in_the_log(seen, records)):
                outcome = Outcome(True, NotLeaderOrFollowerException)
        except LakelogException as error:  # the leader's log cannot be read now, or is not the one that the row is of
            if not error.retriable:
                return error
            return (yield from self._timeout(records, seen, error)) if time_is_over else None
        if outcome.error is NotLeaderOrFollowerException and self._send_again and not time_is_over:
            return (yield from self._retry(partition, self._send_again))
        if outcome.error is TimeoutException:
            return (yield from self._timeout(records, seen))
        if outcome.error:
            return outcome.error(self._explain(outcome.error, seen.registration, records))
        return True if outcome.is_done else None

    def _is_in_the_log(self, seen: Leadership, records: RecordMetadata) -> Round[bool]:
        """Whether the leader's log has these very records, and what its row tells of.

        Offsets and epochs do not tell that where a log has lost its end before the records were written to it: the
        HW may be one that others have passed. Records that have been deleted since count as having been there.
        """
        partition = seen.registration.topic_id_partition
        if partition not in self._logs:
            led = [s for s in self._seen.partitions.values() if s.registration.leader == seen.registration.leader]
            wanted = tuple(s.registration.topic_id_partition for s in led)
            self._logs.update((yield ReadLeaderLogs(seen.registration.leader, wanted)))
        log = self._logs[partition]
        if isinstance(log, LakelogException):
            raise log
        if seen.leader_row:
            self._rules.check_log_leads(log, seen.leader_row, records.name)
        return self._rules.has_records(log, records.last_offset + 1, records.chain)

    def _retry(self, partition: int, send_again: SendAgain) -> Round[LakelogException | None]:
        """Whether that has failed for good; whether it was of use is for the next looks to say."""
        answer = yield from send_again(partition)
        if answer.error is None:
            self._records[partition] = answer
        return None if answer.error is None or may_pass(answer.error) else answer.error

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
        """Its cause is what stands in the way: the metadata or the log cannot be read, or nobody leads."""
        cause = error or self._unseen or (seen.unavailable if seen else None)
        replicas = f"all of the ISR {seen.registration.isr}" if seen else "the ISR"
        lacking = [f"the last error was {cause.name}: {cause}"] if cause else []
        lacking += [(yield from _lacking(seen.registration, records.last_offset))] if seen else []
        timeout = TimeoutException(
            f"{records.name}: {_offsets(records)} were appended but not acknowledged by {replicas} within "
            f"{self._options.timeout_ms} ms: {'; '.join(lacking)}"
        )
        timeout.__cause__ = cause
        return timeout


def _with(records: RecordMetadata, error: LakelogException | None) -> RecordMetadata:
    return records if error is None else replace(records, error=error)


def _offsets(records: RecordMetadata) -> str:
    return f"offsets {records.base_offset} to {records.last_offset}"


def _lacking(registration: PartitionRegistration, last_offset: int) -> Round[str]:
    parts = []
    for broker in (b for b in registration.isr if b != registration.leader):
        try:
            rows: Mapping[TopicIdPartition, Replica] = yield ReadReplicas(broker)
        except LakelogException as error:
            parts.append(f"broker {broker} cannot be asked ({error})")
            continue
        row = rows.get(registration.topic_id_partition)
        end = row.log_end_offset if row else 0
        if end <= last_offset:
            parts.append(f"broker {broker} ends at {end}" + (f" ({row.error})" if row and row.error else ""))
    return "; ".join(parts) or "all have them, and the high watermark is about to follow"


def produce(
    topic: str, counts: Mapping[int, int], identity: ProducerIdentity, options: SendOptions,
    clock: Callable[[], float], rules: SendRules = SEND_RULES,
) -> Round[dict[int, RecordMetadata]]:  # fmt: skip
    """One send, and its acknowledgement if acks is all; answers what has become of the records of each partition."""
    send = SendRound(topic, counts, identity, options, clock, rules)
    answers = yield from send.run()
    if options.acks != ALL:
        return answers

    def send_again(partition: int) -> Round[RecordMetadata]:
        (answer,) = yield from send.append([partition])
        return answer

    again = send_again if options.retries else None
    acknowledged = yield from AcknowledgeRound(topic, answers, options, clock, again, rules).run()
    return {**answers, **acknowledged}
