"""acks=all: when records count as acknowledged, and what to say when they do not in time.

Kafka: `DelayedProduce`. The decision is in `protocol/delayed_operation.produce_outcome`. [AP-07]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Protocol

from replication.clients.delayed_operation import DelayedOperation, Purgatory
from replication.clients.topic_view import Leadership, TopicView
from replication.errors import (
    FencedLeaderEpochException,
    LakelogException,
    NotLeaderOrFollowerException,
    RetriableException,
    TimeoutException,
)
from replication.protocol.delayed_operation import DONE, Outcome, check_log_leads, produce_outcome
from replication.protocol.high_watermark import effective_min_isr
from replication.protocol.partition_registration import PartitionRegistration
from replication.storage.log_state import LogState


class AppendedRecords(Protocol):
    """What was appended to one partition, and under which leader epoch."""

    @property
    def base_offset(self) -> int:
        """First offset."""

    @property
    def last_offset(self) -> int:
        """Last offset."""

    @property
    def leader_epoch(self) -> int:
        """The epoch."""

    @property
    def chain(self) -> str:
        """The chain of the log up to the last offset."""

    @property
    def error(self) -> LakelogException | None:
        """Why it was not appended."""


SendAgain = Callable[[int], AppendedRecords]


def acknowledge(
    view: TopicView,
    topic: str,
    appended: Mapping[int, AppendedRecords],
    deadline: float,
    timeout_ms: int,
    send_again: SendAgain | None = None,
) -> dict[int, LakelogException]:
    """Waits until the HW has passed all that was appended; answers the error of each partition where it has not.

    What a new leader's log does not hold is sent to it again by `send_again`, under the same sequence numbers, so that
    nothing is there twice. TimeoutException says which replicas lack what; NotEnoughReplicasAfterAppendException, that
    the ISR has become too small; NotLeaderOrFollowerException, that a new leader's history does not hold the records
    and nobody sends them again.
    """
    waiting = {p: a for p, a in appended.items() if a.error is None}
    if not waiting:
        return {}
    watch, purgatory = _PatientWatch(view, topic, waiting), Purgatory[int]()
    produces = {
        p: _DelayedProduce(view, watch, topic, p, records, timeout_ms, send_again) for p, records in waiting.items()
    }
    for partition, produce in produces.items():
        purgatory.try_complete_else_watch(DelayedOperation({partition}, deadline, produce.attempt))
    purgatory.wait(watch.moved, view.cluster.config.lakelog_poll_interval_ms)
    return {p: produce.error for p, produce in produces.items() if produce.error}


def may_pass(error: LakelogException | None) -> bool:
    """Whether to send again. A fenced epoch is the old leader's: the metadata names the new one."""
    return isinstance(error, RetriableException | FencedLeaderEpochException)


class _PatientWatch:
    """Where the metadata cannot be read, what was seen last holds, and `error` says why it is not newer.

    `log_of` is the log of a broker, read once a look, after the rows.
    """

    def __init__(self, view: TopicView, topic: str, partitions: Iterable[int]) -> None:
        self.error: LakelogException | None = None
        self.seen: Mapping[int, Leadership] = {}
        self._refreshed: Callable[[int], LogState] = lambda broker: view.log(broker).refresh()
        self._look = lambda: view.leaderships(topic, tuple(partitions))
        self.moved()

    def moved(self) -> set[int]:
        """Looks again, and tells which partitions have moved since the last look."""
        before = self.seen
        self.log_of = cache(self._refreshed)
        try:
            self.seen, self.error = self._look(), None
        except LakelogException as error:
            self.error = error
        return {number for number, seen in self.seen.items() if seen != before.get(number)}


class _DelayedProduce:
    """What was appended to one partition, until it is acknowledged or `error` says why it is not."""

    def __init__(
        self, view: TopicView, watch: _PatientWatch, topic: str, partition: int, records: AppendedRecords,
        timeout_ms: int, send_again: SendAgain | None,
    ) -> None:  # fmt: skip
        self.error: LakelogException | None = None
        self._view = view
        self._watch = watch
        self._name = f"{topic}-{partition}"
        self._partition = partition
        self._records = records
        self._timeout_ms = timeout_ms
        self._send_again = send_again

    def attempt(self, time_is_over: bool) -> bool:
        """One look, as `DelayedOperation` asks for it."""
        seen, records = self._watch.seen.get(self._partition), self._records
        if seen is None:
            self.error = self._timeout(None) if time_is_over else None
            return time_is_over
        if seen.error:  # its root cannot be read now; another broker may be leader soon
            self.error = seen.error if time_is_over or not seen.error.retriable else None
            return self.error is not None
        outcome = produce_outcome(
            seen.leader_row, records.leader_epoch, records.last_offset, len(seen.registration.isr),
            self._min_isr(seen.registration), time_is_over,
        )  # fmt: skip
        try:
            if outcome == DONE and not self._is_in_the_log(seen):
                outcome = Outcome(True, NotLeaderOrFollowerException)
        except LakelogException as error:  # the leader's log cannot be read now, or is not the one that the row is of
            if time_is_over or not error.retriable:
                self.error = self._timeout(seen, error) if error.retriable else error
            return self.error is not None
        if outcome.error is NotLeaderOrFollowerException and self._send_again and not time_is_over:
            return self._retry(self._send_again)
        if outcome.error:
            is_timeout = outcome.error is TimeoutException
            self.error = self._timeout(seen) if is_timeout else outcome.error(self._explain(outcome.error, seen))
        return outcome.is_done

    def _is_in_the_log(self, seen: Leadership) -> bool:
        """Whether the leader's log has these very records, and what its row tells of.

        Offsets and epochs do not tell that where a log has lost its end before the records were written to it: the
        HW may be one that others have passed. Records that have been deleted since count as having been there.
        """
        registration, end = seen.registration, self._records.last_offset + 1
        log = self._watch.log_of(registration.leader).partition(registration.topic_id_partition)
        if seen.leader_row:
            check_log_leads(log, seen.leader_row, self._name)
        return end < log.first_offset or log.chain_at(end) == self._records.chain

    def _retry(self, send_again: SendAgain) -> bool:
        """Tells whether that has failed for good; whether it was of use is for the next looks to say."""
        answer = send_again(self._partition)
        if answer.error is None:
            self._records = answer
        elif not may_pass(answer.error):
            self.error = answer.error
        return self.error is not None

    def _min_isr(self, registration: PartitionRegistration) -> int:
        return effective_min_isr(self._view.config(registration.topic).min_insync_replicas, len(registration.replicas))

    def _explain(self, error: type[LakelogException], seen: Leadership) -> str:
        registration = seen.registration
        if error is NotLeaderOrFollowerException:
            return (
                f"{self._name}: {self._offsets} of leader epoch {self._records.leader_epoch} are not in the log of "
                f"leader {registration.leader} (epoch {registration.leader_epoch})"
            )
        return (
            f"{self._name}: appended, but the ISR {registration.isr} has become smaller than min.insync.replicas "
            f"({self._min_isr(registration)})"
        )

    @property
    def _offsets(self) -> str:
        return f"offsets {self._records.base_offset} to {self._records.last_offset}"

    def _timeout(self, seen: Leadership | None, error: LakelogException | None = None) -> TimeoutException:
        """Its cause is what stands in the way: the metadata or the log cannot be read, or nobody leads."""
        cause = error or self._watch.error or (seen.unavailable if seen else None)
        replicas = f"all of the ISR {seen.registration.isr}" if seen else "the ISR"
        lacking = [f"the last error was {cause.name}: {cause}"] if cause else []
        lacking += [self._lacking(seen.registration)] if seen else []
        timeout = TimeoutException(
            f"{self._name}: {self._offsets} were appended but not acknowledged by {replicas} within "
            f"{self._timeout_ms} ms: {'; '.join(lacking)}"
        )
        timeout.__cause__ = cause
        return timeout

    def _lacking(self, registration: PartitionRegistration) -> str:
        parts = []
        for broker in (b for b in registration.isr if b != registration.leader):
            try:
                row = self._view.replicas(broker).get(registration.topic_id_partition)
            except LakelogException as error:
                parts.append(f"broker {broker} cannot be asked ({error})")
                continue
            end = row.log_end_offset if row else 0
            if end <= self._records.last_offset:
                parts.append(f"broker {broker} ends at {end}" + (f" ({row.error})" if row and row.error else ""))
        return "; ".join(parts) or "all have them, and the high watermark is about to follow"
