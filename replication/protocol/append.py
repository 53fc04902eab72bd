"""Whether a leader may append what a producer sends: the guards, in the order in which Kafka asks them."""

from __future__ import annotations

from replication.errors import (
    FencedLeaderEpochException,
    InvalidRequiredAcksException,
    NotEnoughReplicasException,
    NotLeaderOrFollowerException,
    UnknownLeaderEpochException,
)

ALL = -1
_ACKS = {"0": 0, "1": 1, "all": ALL, "-1": ALL}


def check_append(
    role_is_leader: bool, log_leader_epoch: int, request_leader_epoch: int | None, topic: str, partition: int
) -> None:
    """Only a leader takes appends, and only under the leader epoch that its own log records.

    The epoch is looked at first: it says whether the requester should refresh what it knows (an older epoch) or wait
    for the replica to take up its role (a newer one). A request without an epoch (None) is not checked for it.

    Kafka: `Partition.appendRecordsToLeader`, `Partition.checkCurrentLeaderEpoch`. KIP-320. [EP-06] [AP-06]

    Raises:
        FencedLeaderEpochException: the request's epoch is older than the log's.
        UnknownLeaderEpochException: the request's epoch is newer than the log's.
        NotLeaderOrFollowerException: the replica does not lead.
    """
    epoch = log_leader_epoch if request_leader_epoch is None else request_leader_epoch
    if epoch < log_leader_epoch:
        raise FencedLeaderEpochException(
            f"{topic}-{partition}: leader epoch {epoch} is over, the log is at {log_leader_epoch}"
        )
    if epoch > log_leader_epoch:
        raise UnknownLeaderEpochException(
            f"{topic}-{partition}: leader epoch {epoch} is not known yet, the log is at {log_leader_epoch}"
        )
    if not role_is_leader:
        raise NotLeaderOrFollowerException(f"{topic}-{partition}: not the leader at leader epoch {log_leader_epoch}")


def check_min_isr(acks: int, isr_size: int, min_isr: int, topic: str, partition: int) -> None:
    """With acks=all nothing is written while the ISR has fewer members than it needs.

    `min_isr` is `effective_min_isr`. Other acks are answered without the followers, and so are not refused.

    Kafka: `Partition.appendRecordsToLeader`. [AP-06]

    Raises:
        NotEnoughReplicasException: nothing was written; the same request may succeed later.
    """
    if acks == ALL and isr_size < min_isr:
        raise NotEnoughReplicasException(
            f"{topic}-{partition}: {isr_size} replicas are in sync, acks=all needs {min_isr} (min.insync.replicas)"
        )


def parse_acks(acks: object) -> int:
    """0, 1 or -1 (all in-sync replicas), from 0, 1, -1, "0", "1", "-1" or "all".

    Kafka: `ProducerConfig.parseAcks`, `ReplicaManager.isValidRequiredAcks`. [AP-02]

    Raises:
        InvalidRequiredAcksException: anything else.
    """
    text = str(acks)
    if text not in _ACKS:
        raise InvalidRequiredAcksException(f"acks is {acks!r}: it must be 0, 1 or all (-1)")
    return _ACKS[text]
