"""Deletes the records below an offset: raises the leader's log start, and waits until all live replicas follow.

Kafka: `DeleteRecordsRequest`, `DelayedDeleteRecords`. KIP-107. [DR-01, DR-02]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lakelog.replication.clients.purgatory import DelayedOperation, Purgatory
from lakelog.replication.clients.topic_view import TopicView, TopicWatch
from lakelog.replication.errors import (
    KafkaStorageException,
    LakelogException,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    OffsetOutOfRangeException,
    TimeoutException,
)
from lakelog.replication.protocol.broker_registration import Liveness
from lakelog.replication.protocol.delayed_operation import check_log_leads
from lakelog.replication.protocol.log_retention import delete_records_offset, low_watermark
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.topic import check_not_internal
from lakelog.replication.storage.log.log_start import StartOf, raise_log_starts

Deleted = int | LakelogException

# Another broker may lead, or the root may work again, before the time-out.
_MAY_PASS = (LeaderNotAvailableException, NotLeaderOrFollowerException, KafkaStorageException)


def delete_records(view: TopicView, topic: str, before: Mapping[int, int], timeout_ms: int) -> dict[int, Deleted]:
    """Deletes the records of each partition below its offset; -1 deletes all committed records.

    Returns the low watermark of each partition, or its error: OffsetOutOfRangeException above the HW,
    PolicyViolationException if `cleanup.policy` is none, TimeoutException, UnknownTopicIdException if the topic is made
    again meanwhile (the new one loses nothing), and others. No live replica returns records below the low watermark.
    After a TimeoutException (`timeout_ms`) the leader may still have deleted the records.
    Raises UnknownTopicOrPartitionException, and InvalidTopicException for an internal topic.
    """
    check_not_internal(topic, "delete-records")
    return _Deletion(view, topic, before, time.monotonic() + timeout_ms / 1000).run()


class _Deletion:
    """One request: the outcome of each partition, and the offsets that it waits for."""

    def __init__(self, view: TopicView, topic: str, before: Mapping[int, int], deadline: float) -> None:
        self._view = view
        self._topic = topic
        self._before = before
        self._deadline = deadline
        self._watch = TopicWatch(view, topic, before)
        self._liveness = Liveness(view.cluster.config.broker_session_timeout_ms, time.monotonic)
        self._wanted: dict[int, int] = {}
        self._raised_under: dict[int, int] = {}  # the epoch of the leader whose log start was raised last
        self._outcomes: dict[int, Deleted] = {}

    def run(self) -> dict[int, Deleted]:
        purgatory: Purgatory[int] = Purgatory()
        for number in self._before:
            operation = DelayedOperation([number], self._deadline, self._attempt(number))
            purgatory.try_complete_else_watch(operation)
        everything = list(self._before)
        purgatory.wait(lambda: self._refresh(everything), self._view.cluster.config.lakelog_poll_interval_ms)
        return dict(self._outcomes)

    def _refresh(self, everything: list[int]) -> list[int]:
        """Reads the leaders' rows again. Returns all partitions: a follower's log start is in the follower's row, which
        `TopicWatch` does not read."""
        self._watch.moved()
        return everything

    def _attempt(self, number: int) -> Callable[[bool], bool]:
        def attempt(time_is_over: bool) -> bool:
            try:
                return self._delete(number) and self._is_done(number, time_is_over)
            except LakelogException as error:
                # What one leader has committed is committed at the next one as soon as it knows its high watermark.
                is_deleted = number in self._wanted
                may_pass = isinstance(error, _MAY_PASS + ((OffsetOutOfRangeException,) if is_deleted else ()))
                if may_pass and not time_is_over:
                    return False
                is_late = may_pass and is_deleted
                self._outcomes[number] = self._timeout(number, f"the leader now: {error}") if is_late else error
                return True

        return attempt

    def _delete(self, number: int) -> bool:
        """Raises the leader's log start: once, and again if another broker leads before all replicas have followed. It
        may never have heard of the deletion. Returns True, or raises the leader's error."""
        found = self._watch.leadership(number)
        epoch = found.registration.leader_epoch
        if self._raised_under.get(number) != epoch:
            partition = found.registration.topic_id_partition
            starts = {partition: self._start_of(found.available_row())}
            log = self._view.log(found.registration.leader)
            outcome = raise_log_starts(log, starts, "admin", "delete records", self._deadline)
            result = outcome[partition]
            if isinstance(result, LakelogException):
                raise result
            self._wanted.setdefault(number, result)
            self._raised_under[number] = epoch
        return True

    def _start_of(self, row: ReplicaStatus) -> StartOf:
        may_delete = self._view.config(self._topic).deletes
        before = self._wanted.get(row.partition, self._before[row.partition])  # -1 means the same offset again

        def start_of(log: PartitionLog) -> int:
            check_log_leads(log, row, row.name)
            return delete_records_offset(log, row.leader_epoch, row.high_watermark, before, may_delete, row.name)

        return start_of

    def _is_done(self, number: int, time_is_over: bool) -> bool:
        registration = self._watch.leadership(number).registration
        alive = self._liveness.observe(self._view.cluster.refresh_brokers()) & set(registration.replicas)
        starts = {broker: self._log_start(broker, registration) for broker in sorted(alive)}
        reached = low_watermark(list(starts.values())) if starts else -1
        if reached >= self._wanted[number]:
            self._outcomes[number] = reached
            return True
        if time_is_over:
            raise self._timeout(number, f"log starts by broker: {starts}")
        return False

    def _timeout(self, number: int, found: str) -> TimeoutException:
        return TimeoutException(
            f"{self._topic}-{number}: records below {self._wanted[number]} are deleted at the leader, but not "
            f"everywhere yet; {found}"
        )

    def _log_start(self, broker: int, registration: PartitionRegistration) -> int:
        """A broker's log start; -1 if its table has no row of the partition yet."""
        try:
            row = self._view.replicas(broker).get(registration.topic_id_partition)
        except LakelogException:
            return -1
        return row.log_start_offset if row else -1
