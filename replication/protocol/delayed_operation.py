"""When a request that waits is answered: what one look at its partitions decides.

Kafka: `DelayedProduce`, `DelayedFetch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lakelog.replication.errors import (
    LakelogException,
    LeaderNotAvailableException,
    NotEnoughReplicasAfterAppendException,
    NotLeaderOrFollowerException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
    TimeoutException,
)
from lakelog.replication.protocol.leader_epoch import epoch_at
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.replica import Replica


class Completion(NamedTuple):
    """What one look has found: whether the request is answered now and, if so, with which error."""

    is_done: bool
    error: type[LakelogException] | None = None


NOT_YET, DONE = Completion(False), Completion(True)
_LARGEST_OFFSET = 2**63 - 1


def produce_outcome(
    row: Replica | None, leader_epoch: int, last_offset: int, isr_size: int, min_isr: int, time_is_over: bool
) -> Completion:
    """acks=all is answered when the HW has passed the last record, which must still be the one that was appended.

    Args:
        row: what the leader says under the leader epoch that the metadata has; None if it has not taken it up yet.
        leader_epoch: the epoch that the last record was appended under.
        last_offset: offset of the last record. A log that has it under its epoch has all that came before it, under
            whatever epoch: an earlier attempt may have put the first records there.
        isr_size: members of the ISR now.
        min_isr: members that the ISR needs, see `effective_min_isr`.
        time_is_over: whether this is the last look.

    A later leader counts only if its lineage gives the epoch of the last record to its offset: else the HW passes
    offsets at which other records lie. That is told at once, as it will not change. An ISR that has become too small is
    told when the HW has passed, or at the end; until then it may grow again.

    Kafka: `DelayedProduce.tryComplete`, `Partition.checkEnoughReplicasReachOffset`. KIP-101. [AP-07]
    """
    has_another_history = (
        row is not None and row.leader_epoch > leader_epoch and epoch_at(row.epochs, last_offset) != leader_epoch
    )
    if has_another_history:
        return Completion(True, NotLeaderOrFollowerException)
    is_committed = row is not None and row.leader_epoch >= leader_epoch and row.high_watermark > last_offset
    if not is_committed and not time_is_over:
        return NOT_YET
    if isr_size < min_isr:
        return Completion(True, NotEnoughReplicasAfterAppendException)
    return DONE if is_committed else Completion(True, TimeoutException)


def fetch_outcome(
    partitions: Sequence[int | LakelogException], min_bytes: int, max_bytes: int, time_is_over: bool
) -> Completion:
    """A fetch waits only while waiting may bring more: all its partitions are well and together hold too few bytes.

    Args:
        partitions: of each one asked for, the bytes between its fetch offset and its HW, or its error.
        min_bytes: bytes that are worth an answer; no more than `max_bytes`, as no more are ever sent.
        max_bytes: bytes that an answer may have.
        time_is_over: whether this is the last look; a time to wait of 0 or less is over at the first one.

    Kafka: `ReplicaManager.fetchMessages`, `DelayedFetch.tryComplete`. [FE-02, DO-02]
    """
    if time_is_over or not partitions or any(isinstance(found, LakelogException) for found in partitions):
        return DONE
    readable = sum(found for found in partitions if not isinstance(found, LakelogException))
    return DONE if readable >= min(min_bytes, max_bytes) else NOT_YET


def batches_within(sizes: Sequence[int], max_bytes: int, is_first: bool) -> int:
    """How many of a partition's next batches go into an answer that has room for `max_bytes`.

    The first batch of the first partition that has any ignores the limit: a batch that is larger than it would else
    never be read.

    Kafka: `ReplicaManager.readFromLocalLog`, minOneMessage. KIP-74. [FE-02]
    """
    count, used = 0, 0
    for size in sizes:
        used += size
        if used > max_bytes and not (is_first and count == 0):
            break
        count += 1
    return count


def has_records(log: PartitionLog, end: int, chain: str) -> bool:
    """Whether a log has the records that end at an offset with that chain. Deleted ones count as having been there."""
    return end < log.first_offset or log.chain_at(end) == chain


def check_log_leads(log: PartitionLog, row: Replica, name: str) -> None:
    """What a leader says of a partition holds for its log only if that leads under the row's epoch, and has what the
    row tells of.

    The row is read first and the log after it, so the log holds all that lies below the row's HW, but in two cases. It
    has been deposed in between: then it may have been truncated, and other records may follow. Or a power cut took its
    end and not the row: then records that are appended before its broker is back lie at offsets below the HW of the
    row, which other records have passed. The chain at the row's log end offset tells that. Where a deletion has passed
    that offset there is nothing left to tell apart.

    Kafka: `Partition.readRecords`, under the lock that leadership changes take. [FE-01, FE-02, TR-08]

    Raises:
        NotLeaderOrFollowerException: the log has another role by now; the new leader has the records.
        LeaderNotAvailableException: the log has lost its end; the next leader has the records.
    """
    role = log.role
    if not role.leads_at(row.leader_epoch):
        what = "leads" if role.is_leader else "does not lead"
        raise NotLeaderOrFollowerException(
            f"{name}: leader epoch {row.leader_epoch} is over, the log {what} at leader epoch {role.leader_epoch}"
        )
    if row.log_end_offset >= log.first_offset and log.chain_at(row.log_end_offset) != row.chain:
        raise LeaderNotAvailableException(
            f"{name}: the log of broker {row.broker_id} has lost its end, and has not the records up to offset "
            f"{row.log_end_offset} that its broker told of"
        )


def check_committed_offset(offset: int, name: str) -> None:
    """A group commits the offset that it reads next: any that a log may come to.

    Kafka: `GroupMetadataManager.storeOffsets`. [AP-04]

    Raises:
        OffsetOutOfRangeException: it is negative, above 2^63 - 1, or no whole number.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _LARGEST_OFFSET:
        raise OffsetOutOfRangeException(
            f"{name}: offset {offset!r} cannot be committed, it must be a whole number from 0 to 2^63 - 1"
        )


def check_offset_available(offset: int | None, high_watermark: int, epoch_start: int, name: str) -> None:
    """Where the committed records end is not known while the HW is below the start of the leader's epoch.

    A new leader has all that was committed before, but its HW comes from its own past and lags behind: "latest" would
    go back, and an offset that was committed would look as if it were not. Both become known once the ISR has told
    the leader how far it is. `offset`: one that is asked for by its number; None for "latest".

    Kafka: `Partition.fetchOffsetForTimestamp`. KIP-207.

    Raises:
        OffsetNotAvailableException: ask again.
    """
    may_be_committed = offset is None or high_watermark < offset <= epoch_start
    if high_watermark < epoch_start and may_be_committed:
        raise OffsetNotAvailableException(
            f"{name}: the high watermark {high_watermark} is below {epoch_start}, where the leader's epoch "
            "starts: how much is committed is not known yet"
        )


def check_fetch_offset(offset: int, log: PartitionLog, name: str) -> None:
    """A fetch offset lies within the log. Above the HW is no error: a new leader's HW lags behind what was committed.

    Kafka: `UnifiedLog.read`, `Partition.fetchOffsetSnapshot`. KIP-207. [FE-02]

    Raises:
        OffsetOutOfRangeException: the offset is below the log start or above the LEO.
    """
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRangeException(
            f"{name}: offset {offset} is out of range, the log has {log.log_start_offset} to {log.log_end_offset}"
        )
