"""A partition as its leader has it: what the admin verbs look at that read logs."""

from typing import NamedTuple

from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import UnknownTopicOrPartitionException
from lakelog.replication.protocol.delayed_operation import check_log_leads
from lakelog.replication.protocol.partition_leader import Leadership
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.storage.delta.storage_root import StorageRoot


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
