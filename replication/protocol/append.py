"""Decides whether and where a leader appends a producer's records, and whether a follower appends fetched batches.

The checks run in Kafka's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lakelog.replication.errors import (
    DuplicateSequenceException,
    FencedLeaderEpochException,
    InvalidRequiredAcksException,
    NotEnoughReplicasException,
    NotLeaderOrFollowerException,
    OffsetOutOfRangeException,
    OutOfOrderSequenceException,
)
from lakelog.replication.protocol.fencing import check_leader_epoch
from lakelog.replication.protocol.leader_epoch import epoch_at
from lakelog.replication.protocol.partition_log import PartitionLog, Role
from lakelog.replication.protocol.producer_state import KnownBatch, KnownRecords, check_sequence, known_runs
from lakelog.replication.protocol.record_batch import LogEnd, OfPartition

# The digests of parts of a request. A part is a range of its records, counted from 0.
Digests: TypeAlias = Callable[[Sequence[range]], Sequence[str]]

ALL = -1
_ACKS = {"0": 0, "1": 1, "all": ALL, "-1": ALL}


@dataclass(frozen=True)
class PartitionAppend(OfPartition):
    """A producer's request to append `records` records to one partition, under a leader epoch and a first sequence.

    `replicas` decides which segment the records go to: all partitions in a segment have the same replicas. `follows`:
    earlier records of the producer are not acknowledged yet, so the log must have them before these.
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
    follows: bool = False


class Appended(NamedTuple):
    """The first and last offset of the records; `duplicate` if an earlier attempt had appended all of them.

    `leader_epoch`: for a duplicate, the epoch of its last record, which may be older than the request's; otherwise
    None. `known`: how many records, from the first on, an earlier attempt had appended. If only the rest is appended
    now, records of other producers may lie in between. `chain`: the chain of the log after the last record, set once
    the record is in the log.
    """

    base_offset: int
    last_offset: int
    duplicate: bool = False
    leader_epoch: int | None = None
    known: int = 0
    chain: str = ""


class AppendPosition(NamedTuple):
    """Where to write a request: the offset of its first new record, the number of its records that the log has already
    (`known`), and the chain of the log before that offset."""

    base_offset: int
    known: int = 0
    chain: str = ""


def position_of(appended: Appended, log_end: LogEnd) -> AppendPosition | None:
    """The position of the new records, which is the end of the log; None if no record is new."""
    return None if appended.duplicate else AppendPosition(log_end.offset, appended.known, log_end.chain)


def place(log: PartitionLog, request: PartitionAppend, digests: Digests) -> Appended:
    """Where a leader puts the records: at its LEO, or where an earlier attempt has put them.

    A new leader may have replicated only the first of them before its election. It appends the rest at its LEO. The
    role and the leader epoch are checked before the sequence, because only the leader's log can recognise a duplicate.
    `digests` is called only if the log may have records of the request.

    Kafka: `Partition.appendRecordsToLeader`, `UnifiedLog.analyzeAndValidateProducerState`. KIP-98, KIP-320. [AP-06]

    Raises:
        FencedLeaderEpochException, UnknownLeaderEpochException, NotLeaderOrFollowerException: see `check_append`.
        ProducerFencedException, OutOfOrderSequenceException: see `producer_state.check_sequence`. Out of order is also
            a request that follows others, if the log does not know its producer.
        DuplicateSequenceException: see `check_same_records`.
    """
    check_append(log.role, request.leader_epoch, request.name)
    entry = log.producers.get(request.producer_id)
    if entry is None and request.follows:
        raise OutOfOrderSequenceException(
            f"{request.name}: the log does not know producer {request.producer_id}, whose earlier records come first"
        )
    known = check_sequence(
        entry, request.producer_id, request.producer_epoch, request.base_sequence,
        request.records,
    )  # fmt: skip
    if known is None:
        return Appended(log.log_end_offset, log.log_end_offset + request.records - 1)
    check_same_records(log, request, known, digests)
    if known.records == request.records:
        return Appended(known.base_offset, known.last_offset, True, epoch_at(log.lineage, known.last_offset))
    last_offset = log.log_end_offset + request.records - known.records - 1
    return Appended(known.base_offset, last_offset, known=known.records)


def check_same_records(log: PartitionLog, request: PartitionAppend, known: KnownRecords, digests: Digests) -> None:
    """A request is a repeat of what the log has under its sequences only if its records are the same.

    Kafka takes each batch with a known sequence for a repeat. A process that was copied (forked, or restored from the
    image of a machine) has the sequences of the original, so its records would be acknowledged and be in no log. A log
    knows the digests of its batches, in any layout of files, and the last ones of a producer whose batches were
    deleted. A request has whole batches, because a retry sends what was sent before.

    Raises:
        DuplicateSequenceException: the log has other records under these sequences.
        OutOfOrderSequenceException: the records were deleted so long ago that the log does not know their digests.
    """
    whole = range(known.records)
    batches = list(_known_batches(log, request, known))
    parts = [part for part, _ in batches]
    is_whole = all(part.start >= whole.start and part.stop <= whole.stop for part in parts)
    if not is_whole or list(digests(parts)) != [digest for _, digest in batches]:
        raise DuplicateSequenceException(
            f"{request.name}: the log has other records of producer {request.producer_id} from sequence "
            f"{request.base_sequence} on: another process uses the identity of this producer, for example a fork or a "
            "restored machine; these records were not appended"
        )
    forgotten = log.forgotten.get(request.producer_id)
    is_of_an_older_version = forgotten is not None and not forgotten.batches
    if not any(part.stop == whole.stop for part in parts) and not is_of_an_older_version:
        raise OutOfOrderSequenceException(
            f"{request.name}: the records of producer {request.producer_id} from sequence {request.base_sequence} on "
            "were deleted, and the log does not know any more what they were"
        )


def _known_batches(
    log: PartitionLog, request: PartitionAppend, known: KnownRecords
) -> Iterator[tuple[range, str]]:  # fmt: skip
    """The batches of the log that have the first records of a request: the part of the request that each is, and its
    digest."""
    entry, forgotten = log.producers[request.producer_id], log.forgotten.get(request.producer_id)
    for run in known_runs(entry, request.base_sequence, known.records):
        stop = run.base_offset + run.records
        headers = (placed.header for placed in log.batches_between(run.base_offset, stop))
        deleted = (b for b in (forgotten.batches if forgotten else ()) if b.base_offset < log.first_offset)
        for batch in (*deleted, *(KnownBatch(h.base_offset, h.last_offset, h.digest) for h in headers)):
            if batch.base_offset < stop and batch.last_offset >= run.base_offset:
                start = run.place + batch.base_offset - run.base_offset
                yield range(start, start + batch.last_offset - batch.base_offset + 1), batch.digest


def check_append(role: Role, leader_epoch: int | None, name: str) -> None:
    """Only a leader accepts appends, and only under the leader epoch that its own log records.

    The epoch is checked first, because by its error the producer decides whether to refresh its metadata or to wait.

    Kafka: `Partition.appendRecordsToLeader`, `Partition.checkCurrentLeaderEpoch`. KIP-320. [EP-06] [AP-06]

    Raises:
        FencedLeaderEpochException, UnknownLeaderEpochException: see `fencing.check_leader_epoch`.
        NotLeaderOrFollowerException: the replica is not the leader.
    """
    check_leader_epoch(role.leader_epoch, leader_epoch, name)
    if not role.is_leader:
        raise NotLeaderOrFollowerException(f"{name}: not the leader at leader epoch {role.leader_epoch}")


def check_follower_append(log: PartitionLog, leader_epoch: int, previous: str, name: str) -> None:
    """A follower appends only in the role in which it fetched, and only batches that continue its chain.

    Kafka: `Partition.appendRecordsToFollowerOrFutureReplica`, `ReplicaFetcherThread`. Raft: AppendEntries. [AP-03,
    FT-10]

    Raises:
        FencedLeaderEpochException: the replica has another role or leader epoch by now.
        OffsetOutOfRangeException: the log does not end with the chain `previous`.
    """
    if not log.role.follows_at(leader_epoch):
        raise FencedLeaderEpochException(
            f"{name}: nothing appended: it no longer follows at leader epoch {leader_epoch} ({log.role})"
        )
    if log.log_end.chain != previous:
        raise OffsetOutOfRangeException(
            f"{name}: the records fetched follow the chain {previous}, but the log ends at {log.log_end}"
        )


def check_min_isr(acks: int, isr_size: int, min_isr: int, topic: str, partition: int) -> None:
    """With acks=all, nothing is sent to a leader while the ISR has fewer than `min_isr` members.

    In Kafka the leader refuses the records. Here the producer checks it by the metadata, because it appends to the log
    itself. `min_isr` comes from `effective_min_isr`. With other acks nobody waits for followers, so no ISR is too
    small.

    Kafka: `Partition.appendRecordsToLeader`. [AP-06]

    Raises:
        NotEnoughReplicasException: nothing was written; the same request may succeed later.
    """
    if acks == ALL and isr_size < min_isr:
        raise NotEnoughReplicasException(
            f"{topic}-{partition}: {isr_size} replicas are in sync, acks=all needs {min_isr} (min.insync.replicas)"
        )


def parse_acks(acks: object) -> int:
    """The number of acks: 0, 1, or -1 for all in-sync replicas. Accepts 0, 1, -1, "0", "1", "-1" and "all".

    Kafka: `ProducerConfig.parseAcks`, `ReplicaManager.isValidRequiredAcks`. [AP-02]

    Raises:
        InvalidRequiredAcksException: any other value.
    """
    text = str(acks)
    if text not in _ACKS:
        raise InvalidRequiredAcksException(f"acks is {acks!r}: it must be 0, 1 or all (-1)")
    return _ACKS[text]
