"""Whose word counts: every rule that compares epochs, so that what an older leader, controller or process of a broker
says or asks for is not taken for a newer one's.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakelog.replication.errors import (
    FencedLeaderEpochException,
    KafkaStorageException,
    LakelogException,
    NotLeaderOrFollowerException,
    UnknownLeaderEpochException,
)
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import FOLLOWER_ROLE, LEADER_ROLE, Replica


def check_leader_epoch(current: int, requested: int | None, name: str) -> None:
    """A request is for one leader epoch: below the replica's it comes from the past, above it too early.

    An older epoch tells the requester to refresh what it knows, a newer one to wait until the replica has taken up its
    role. A request without an epoch (None) is not checked.

    Kafka: `Partition.checkCurrentLeaderEpoch`. KIP-320. [EP-06]

    Raises:
        FencedLeaderEpochException: the requested epoch is older than `current`.
        UnknownLeaderEpochException: the requested epoch is newer than `current`.
    """
    if requested is not None and requested < current:
        raise FencedLeaderEpochException(f"{name}: leader epoch {requested} is over, the log is at {current}")
    if requested is not None and requested > current:
        raise UnknownLeaderEpochException(f"{name}: leader epoch {requested} is not known yet, the log is at {current}")


def is_newer(hosted: PartitionRegistration | None, offered: PartitionRegistration) -> bool:
    """Whether a registration gives a replica another role: one with the epoch it has, or an older one, does not.

    The same registration is read many times, and a snapshot may be older than what this broker has written itself.
    What an older controller has decided is refused, whatever its leader epoch.

    Kafka: `ReplicaManager.becomeLeaderOrFollower`, STALE_CONTROLLER_EPOCH. [BL-01, BL-02, BL-08]
    """
    if hosted is None:
        return True
    is_from_an_older_controller = offered.controller_epoch < hosted.controller_epoch
    return offered.leader_epoch > hosted.leader_epoch and not is_from_an_older_controller


def row_counts(
    row: Replica | None, registration: PartitionRegistration, broker_epochs: Mapping[int, int], log: PartitionLog
) -> bool:
    """Whether a leader may take a follower's row at its word, for the HW, the ISR and its lag.

    It must be of this topic, of this leadership and of the process that is registered now, and its log must have been
    brought in line with the leader's: before that its LEO may count records that are about to be truncated. And the
    leader's own `log` must have the row's chain at the row's LEO: so a replica counts only for what it has byte for
    byte.

    Kafka: `ReplicaManager.updateFollowerFetchState` under a checked leader epoch. KIP-320, KIP-903. [FE-03]
    """
    if row is None or row.topic_id != registration.topic_id:
        return False
    is_of_this_leadership = row.leader_epoch == registration.leader_epoch and row.role == FOLLOWER_ROLE
    is_of_this_process = broker_epochs.get(row.broker_id) == row.broker_epoch
    if not is_of_this_leadership or not is_of_this_process or row.state != FollowerState.FETCHING:
        return False
    return log.chain_at(row.log_end_offset) == row.chain


def check_leader_row(row: Replica | None, partition: TopicIdPartition, leader_epoch: int) -> LakelogException | None:
    """What a follower at `leader_epoch` makes of its leader's row: None if it may fetch, else the error that it is in.

    UNKNOWN_LEADER_EPOCH: the leader is slower than its follower, and its row will move. FENCED_LEADER_EPOCH: the
    follower is slower; nothing but newer metadata will help it. NOT_LEADER_OR_FOLLOWER: it does not lead any more.
    KAFKA_STORAGE_ERROR: a file of its is broken, and others will lead. [OL-01]

    Kafka: `AbstractFetcherThread.processFetchRequest`. KIP-320. [FT-14, EP-06]
    """
    name = row.name if row else str(partition)
    try:
        check_leader_epoch(row.leader_epoch if row else -1, leader_epoch, name)
    except LakelogException as error:
        return error
    if row is not None and row.state == FollowerState.OFFLINE:
        return KafkaStorageException(f"{name}: broker {row.broker_id}: {row.error}")
    if row is not None and row.role != LEADER_ROLE:
        return NotLeaderOrFollowerException(f"{name}: broker {row.broker_id} follows at leader epoch {leader_epoch}")
    return None
