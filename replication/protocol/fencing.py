"""Compares epochs, so that nobody takes the word of an older leader, controller or broker process for a newer one's;
and the lease of the active controller. [CE-02]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus


def check_leader_epoch(current: int, requested: int | None, name: str) -> None:
    """A request must carry the replica's current leader epoch. A request without one (None) is not checked.

    After an older epoch the requester refreshes its metadata. After a newer one it waits until the replica has taken
    up its role.

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
    """Whether a registration gives a replica a new role: a higher leader epoch, from no older controller.

    A broker reads the same registration many times, and may read a snapshot that is older than its own last write. A
    decision of an older controller is refused whatever its leader epoch.

    Kafka: `ReplicaManager.becomeLeaderOrFollower`, STALE_CONTROLLER_EPOCH. [BL-01, BL-02, BL-08]
    """
    if hosted is None:
        return True
    is_from_an_older_controller = offered.controller_epoch < hosted.controller_epoch
    return offered.leader_epoch > hosted.leader_epoch and not is_from_an_older_controller


def row_counts(
    row: ReplicaStatus | None, registration: PartitionRegistration, broker_epochs: Mapping[int, int], log: PartitionLog
) -> bool:
    """Whether a leader counts a follower's row for the HW, the ISR and the lag.

    The row must be of this topic id, this leader epoch and the registered broker epoch, and its state must be Fetching:
    before the truncation its LEO may include records that will be truncated. And the leader's `log` must have the row's
    chain at the row's LEO. So a replica counts only for records that equal the leader's, byte for byte.

    Kafka: `ReplicaManager.updateFollowerFetchState` under a checked leader epoch. KIP-320, KIP-903. [FE-03]
    """
    if row is None or row.topic_id != registration.topic_id:
        return False
    is_of_this_leadership = row.leader_epoch == registration.leader_epoch and row.role == FOLLOWER_ROLE
    is_of_this_process = broker_epochs.get(row.broker_id) == row.broker_epoch
    if not is_of_this_leadership or not is_of_this_process or row.state != FollowerState.FETCHING:
        return False
    return log.chain_at(row.log_end_offset) == row.chain


def check_leader_row(
    row: ReplicaStatus | None, partition: TopicIdPartition, leader_epoch: int
) -> LakelogException | None:
    """Whether a follower at `leader_epoch` may fetch from a leader with this row: None if so, else the error. A
    follower shows FENCED_LEADER_EPOCH; with the others it waits.

    UNKNOWN_LEADER_EPOCH: the leader has not taken up the epoch yet; the follower waits for its row.
    FENCED_LEADER_EPOCH: the follower is behind and needs newer metadata. NOT_LEADER_OR_FOLLOWER: the broker does not
    lead any more. KAFKA_STORAGE_ERROR: the leader has a broken file, and another broker will lead. [OL-01]

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


@dataclass(frozen=True, slots=True)
class Lease:
    """The row of the active controller, and `lease`, the version of its table, which rises as long as the controller is
    alive."""

    controller_id: str
    controller_epoch: int
    lease: int = 0
    resigned: bool = False
