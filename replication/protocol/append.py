"""Whether and where a leader appends what a producer sends: the guards, in the order in which Kafka asks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lakelog.replication.errors import (
    InvalidRequiredAcksException,
    NotEnoughReplicasException,
    NotLeaderOrFollowerException,
)
from lakelog.replication.protocol.fencing import check_leader_epoch
from lakelog.replication.protocol.leader_epoch import epoch_at
from lakelog.replication.protocol.partition_log import PartitionLog, Role
from lakelog.replication.protocol.producer_state import check_sequence
from lakelog.replication.protocol.record_batch import LogEnd, OfPartition

ALL = -1
_ACKS = {"0": 0, "1": 1, "all": ALL, "-1": ALL}


@dataclass(frozen=True)
class PartitionAppend(OfPartition):
    """What a producer asks of one partition: how many records, under which leader epoch, with which sequence numbers.

    `replicas` tells which followers will copy the records: a segment holds only partitions with the same ones.
    """

    topic: str
    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    leader_epoch: int
    records: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class Appended(NamedTuple):
    """Where the records are: first and last offset, and whether an earlier attempt had put them there already.

    `leader_epoch`: of a duplicate, the epoch that its last record lies under, which may be an older one than that of
    the request; None of what is appended now. `known`: how many records at the beginning an earlier attempt had put
    there, where the rest is appended now; records of others may lie in between. `chain` is that of the log up to the
    last record, once it is there.
    """

    base_offset: int
    last_offset: int
    duplicate: bool = False
    leader_epoch: int | None = None
    known: int = 0
    chain: str = ""


class AppendPosition(NamedTuple):
    """Where the write for a request begins: the offset of its first new record, how many of its records come before
    that one, and the chain of the log up to there."""

    base_offset: int
    known: int = 0
    chain: str = ""


def position_of(appended: Appended, log_end: LogEnd) -> AppendPosition | None:
    """Where to write the new records, which is at the log's end; None if there are none."""
    return None if appended.duplicate else AppendPosition(log_end.offset, appended.known, log_end.chain)


def place(log: PartitionLog, request: PartitionAppend) -> Appended:
    """Where a leader puts the records: at its LEO, or where they lie already if they were sent before.

    If it has only the first ones, as when it was elected before it had fetched all of them, the rest goes to its LEO.
    Role and epoch are asked first, then the producer's sequence: only the leader's own log can say what is a repeat.

    Kafka: `Partition.appendRecordsToLeader`, `UnifiedLog.analyzeAndValidateProducerState`. KIP-98, KIP-320. [AP-06]

    Raises:
        FencedLeaderEpochException, UnknownLeaderEpochException, NotLeaderOrFollowerException: see `check_append`.
        ProducerFencedException, OutOfOrderSequenceException: see `producer_state.check_sequence`.
    """
    check_append(log.role, request.leader_epoch, request.name)
    known = check_sequence(
        log.producers.get(request.producer_id), request.producer_id, request.producer_epoch, request.base_sequence,
        request.records,
    )  # fmt: skip
    if known is None:
        return Appended(log.log_end_offset, log.log_end_offset + request.records - 1)
    if known.records == request.records:
        return Appended(known.base_offset, known.last_offset, True, epoch_at(log.lineage, known.last_offset))
    last_offset = log.log_end_offset + request.records - known.records - 1
    return Appended(known.base_offset, last_offset, known=known.records)


def check_append(role: Role, leader_epoch: int | None, name: str) -> None:
    """Only a leader takes appends, and only under the leader epoch that its own log records.

    The epoch is looked at first: it says whether the producer should refresh what it knows or wait.

    Kafka: `Partition.appendRecordsToLeader`, `Partition.checkCurrentLeaderEpoch`. KIP-320. [EP-06] [AP-06]

    Raises:
        FencedLeaderEpochException, UnknownLeaderEpochException: see `fencing.check_leader_epoch`.
        NotLeaderOrFollowerException: the replica does not lead.
    """
    check_leader_epoch(role.leader_epoch, leader_epoch, name)
    if not role.is_leader:
        raise NotLeaderOrFollowerException(f"{name}: not the leader at leader epoch {role.leader_epoch}")


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
