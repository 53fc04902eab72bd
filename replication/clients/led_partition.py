"""A partition as its leader has it: what the admin verbs look at that read logs."""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple, TypeVar

from lakelog.replication.clients.purgatory import until_available
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    LakelogException,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    OffsetNotAvailableException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.delayed_operation import check_log_leads
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.replica_status import Leadership, ReplicaStatus
from lakelog.replication.storage.delta.storage_root import StorageRoot

Answer = TypeVar("Answer")


class LedPartition(NamedTuple):
    """The leader's row of a partition, and its log, read after the row: it holds all that lies below the row's HW."""

    registration: PartitionRegistration
    row: ReplicaStatus
    log: PartitionLog
    root: StorageRoot


def led_partition(view: TopicView, found: Leadership | None, name: str) -> LedPartition:
    """Raises UnknownTopicOrPartitionException if nothing was found, LeaderNotAvailableException or
    NotLeaderOrFollowerException where nobody leads, or not yet, or the log has lost its end, and what the leader's
    tables raise.
    """
    if found is None:
        raise UnknownTopicOrPartitionException(f"{name}: no such partition")
    registration, row = found.registration, found.available_row()
    log = view.log(registration.leader)
    partition_log = log.refresh().partition(registration.topic_id_partition)
    check_log_leads(partition_log, row, name)
    return LedPartition(registration, row, partition_log, log.root)


def ask_leaders(
    view: TopicView, topic: str, numbers: Collection[int], ask: Callable[[LedPartition], Answer], deadline: float
) -> dict[int, Answer | LakelogException]:
    """What `ask` answers to each of these partitions, or its error.

    Leaders that have just changed are asked again until `deadline` (s, monotonic clock): they have not taken up their
    role yet, or do not know how much is committed. A partition without a leader is answered at once. All answers are of
    one topic id: if the topic is made again meanwhile, all its partitions are asked anew.
    Raises UnknownTopicOrPartitionException if there is no such topic.
    """
    answers: dict[int, Answer | LakelogException] = {}
    passing: dict[int, LakelogException] = {}  # errors of leaders that are asked again
    topic_ids: set[str] = set()

    def poll() -> None:
        found = view.leaderships(topic, numbers)
        ids = {each.registration.topic_id for each in found.values()}
        if ids - topic_ids:
            answers.clear()
        topic_ids.update(ids)
        passing.clear()
        for number in (number for number in numbers if number not in answers):
            try:
                answers[number] = ask(led_partition(view, found.get(number), f"{topic}-{number}"))
            except LakelogException as error:
                (passing if _may_pass(found.get(number), error) else answers)[number] = error
        for late in passing.values():
            raise late

    with suppress(*_PASSING):  # the partition's answer says so
        until_available(poll, deadline, view.cluster.config.lakelog_poll_interval_ms, _PASSING)
    return {number: passing[number] if number in passing else answers[number] for number in numbers}


# Kafka's admin client retries these.
_PASSING = (OffsetNotAvailableException, LeaderNotAvailableException, NotLeaderOrFollowerException)


def _may_pass(found: Leadership | None, error: LakelogException) -> bool:
    """Whether the leader may answer in a moment: not if nobody leads, or the root cannot be read."""
    return found is not None and found.registration.leader != NO_LEADER and isinstance(error, _PASSING)
