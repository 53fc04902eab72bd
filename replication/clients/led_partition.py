"""A partition as its leader has it: what the admin verbs look at that read logs."""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple, TypeVar

from lakelog.replication.clients.delayed_operation import until_available
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    LakelogException,
    OffsetNotAvailableException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.delayed_operation import check_log_leads
from lakelog.replication.protocol.partition_leader import Leadership
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.storage.delta.storage_root import StorageRoot

Answer = TypeVar("Answer")


class LedPartition(NamedTuple):
    """The leader's row of a partition, and its log, read after the row: it holds all that lies below the row's HW."""

    registration: PartitionRegistration
    row: Replica
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

    New leaders that do not know yet how much is committed are asked again, until `deadline` (s, monotonic clock).
    Raises UnknownTopicOrPartitionException if there is no such topic.
    """
    answers: dict[int, Answer | LakelogException] = {}

    def look() -> None:
        found = view.leaderships(topic, numbers)
        for number in numbers:
            if number not in answers or isinstance(answers[number], OffsetNotAvailableException):
                try:
                    answers[number] = ask(led_partition(view, found.get(number), f"{topic}-{number}"))
                except LakelogException as error:
                    answers[number] = error
        for answer in answers.values():
            if isinstance(answer, OffsetNotAvailableException):
                raise answer

    with suppress(OffsetNotAvailableException):  # the partition's answer says so
        until_available(look, deadline, view.cluster.config.lakelog_poll_interval_ms)
    return answers
