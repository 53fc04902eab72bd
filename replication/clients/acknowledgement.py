"""acks=all: when records count as acknowledged, and what to say when they do not in time.

Kafka: `DelayedProduce`. The decision is in `protocol/delayed_operation.produce_outcome`. [AP-07]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from replication.clients.delayed_operation import DelayedOperation, Purgatory
from replication.clients.topic_view import Leadership, TopicView, TopicWatch
from replication.errors import (
    FencedLeaderEpochException,
    LakelogException,
    NotEnoughReplicasAfterAppendException,
    NotLeaderOrFollowerException,
    RetriableException,
)
from replication.protocol.delayed_operation import produce_outcome
from replication.protocol.high_watermark import effective_min_isr
from replication.protocol.partition_registration import PartitionRegistration


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
    watch, purgatory = TopicWatch(view, topic, waiting), Purgatory[int]()
    produces = {p: _DelayedProduce(view, watch, p, records, timeout_ms, send_again) for p, records in waiting.items()}
    for partition, produce in produces.items():
        purgatory.try_complete_else_watch(DelayedOperation({partition}, deadline, produce.attempt))
    purgatory.wait(watch.moved, view.cluster.config.lakelog_poll_interval_ms)
    return {p: produce.error for p, produce in produces.items() if produce.error}


def may_pass(error: LakelogException | None) -> bool:
    """Whether to send again. A fenced epoch is the old leader's: the metadata names the new one."""
    return isinstance(error, RetriableException | FencedLeaderEpochException)


class _DelayedProduce:
    """What was appended to one partition, until it is acknowledged or `error` says why it is not."""

    def __init__(
        self, view: TopicView, watch: TopicWatch, partition: int, records: AppendedRecords, timeout_ms: int,
        send_again: SendAgain | None,
    ) -> None:  # fmt: skip
        self.error: LakelogException | None = None
        self._view = view
        self._watch = watch
        self._partition = partition
        self._records = records
        self._timeout_ms = timeout_ms
        self._send_again = send_again

    def attempt(self, time_is_over: bool) -> bool:
        """One look, as `DelayedOperation` asks for it."""
        seen, records = self._watch.seen[self._partition], self._records
        if seen.error:  # its root cannot be read now; another broker may be leader soon
            self.error = seen.error if time_is_over or not seen.error.retriable else None
            return self.error is not None
        # A log that has the last record under its epoch has all that came before it, under whatever epoch.
        outcome = produce_outcome(
            seen.leader_row, records.leader_epoch, records.last_offset, records.last_offset,
            len(seen.registration.isr), self._min_isr(seen.registration), time_is_over,
        )  # fmt: skip
        if outcome.error is NotLeaderOrFollowerException and self._send_again and not time_is_over:
            return self._retry(self._send_again)
        if outcome.error:
            self.error = outcome.error(self._explain(outcome.error, seen))
        return outcome.is_done

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
        name = f"{registration.topic}-{registration.partition}"
        offsets = f"offsets {self._records.base_offset} to {self._records.last_offset}"
        if error is NotLeaderOrFollowerException:
            return (
                f"{name}: {offsets} of leader epoch {self._records.leader_epoch} are not in the log of leader "
                f"{registration.leader} (epoch {registration.leader_epoch})"
            )
        if error is NotEnoughReplicasAfterAppendException:
            return (
                f"{name}: appended, but the ISR {registration.isr} has become smaller than min.insync.replicas "
                f"({self._min_isr(registration)})"
            )
        return (
            f"{name}: {offsets} were appended but not acknowledged by all of the ISR {registration.isr} within "
            f"{self._timeout_ms} ms: {self._lacking(registration)}"
        )

    def _lacking(self, registration: PartitionRegistration) -> str:
        parts = []
        for broker in (b for b in registration.isr if b != registration.leader):
            row = self._view.replicas(broker).get(registration.topic_id_partition)
            end = row.log_end_offset if row else 0
            if end <= self._records.last_offset:
                parts.append(f"broker {broker} ends at {end}" + (f" ({row.error})" if row and row.error else ""))
        return "; ".join(parts) or "all have them, and the high watermark is about to follow"
