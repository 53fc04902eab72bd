"""Decides when a waiting request is answered, each time its partitions are read.

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
from lakelog.replication.protocol.replica_status import Leadership, ReplicaStatus

_LARGEST_OFFSET = 2**63 - 1


class Completion(NamedTuple):
    """Whether a request is answered now and, if so, with which error."""

    is_done: bool
    error: type[LakelogException] | None = None


NOT_YET, DONE = Completion(False), Completion(True)


def produce_outcome(
    row: ReplicaStatus | None, leader_epoch: int, last_offset: int, isr_size: int, min_isr: int, time_is_over: bool
) -> Completion:
    """Decides acks=all: it is done once the HW is above the last record, if that record is still there.

    Args:
        row: the leader's row under the metadata's leader epoch; None until the leader has taken up that epoch.
        leader_epoch: the epoch of the last record. A log with that record under that epoch also has the records before
            it, under any epoch: an earlier attempt may have appended the first ones.
        last_offset: offset of the last record.
        isr_size: current number of ISR members.
        min_isr: number of members that the ISR needs, see `effective_min_isr`.
        time_is_over: whether this is the last check before the timeout.

    A later leader counts only if its lineage has the record's epoch at the record's offset. Otherwise other records are
    there, and the request fails at once, because that cannot change. An ISR below `min_isr` fails the request only once
    the HW is above the record or the time is over; until then the ISR may grow again.

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
    """Decides a consumer's fetch: it waits while no partition has an error and all together have too few bytes.

    Args:
        partitions: for each partition, the bytes between its fetch offset and its HW, or its error.
        min_bytes: bytes that are worth an answer; capped at `max_bytes`, which is all that an answer can hold.
        max_bytes: the most bytes of an answer.
        time_is_over: whether this is the last check before the timeout; a wait of 0 ms or less is over at the first.

    Kafka: `ReplicaManager.fetchMessages`, `DelayedFetch.tryComplete`. [FE-02, DO-02]
    """
    if time_is_over or not partitions or any(isinstance(found, LakelogException) for found in partitions):
        return DONE
    readable = sum(found for found in partitions if not isinstance(found, LakelogException))
    return DONE if readable >= min(min_bytes, max_bytes) else NOT_YET


def batches_within(sizes: Sequence[int], max_bytes: int, is_first: bool) -> int:
    """How many of a partition's next batches, of `sizes` bytes each, fit into `max_bytes`.

    `is_first`: no earlier partition of the answer has a batch. Its first batch ignores the limit, because a batch
    larger than the limit could never be read otherwise.

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
    """Whether the log has the records before offset `end`, with this chain there. Deleted records count as present."""
    return end < log.first_offset or log.chain_at(end) == chain


def check_log_leads(log: PartitionLog, row: ReplicaStatus, name: str) -> None:
    """A leader's row describes its log if the log leads under the row's epoch and has the row's chain at the row's LEO.

    A reader reads the row first and the log after it. So the log has every record below the row's HW, with two
    exceptions. In between, the broker may have lost its leadership; then its log may have been truncated and continued
    with other records. Or a power cut took the end of the log and left the row; then new records may be at offsets
    below the row's HW. The chain at the row's LEO shows that. After a deletion beyond that LEO no chain is left.

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
            f"{name}: the log of broker {row.broker_id} has lost its end, it lacks records below offset "
            f"{row.log_end_offset} that its replica row claims"
        )


def check_committed_offset(offset: int, name: str) -> None:
    """A consumer group commits the offset that it reads next; any offset that a log can reach is allowed.

    Kafka: `GroupMetadataManager.storeOffsets`. [AP-04]

    Raises:
        OffsetOutOfRangeException: the offset is negative, above 2^63 - 1, or not an integer.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _LARGEST_OFFSET:
        raise OffsetOutOfRangeException(
            f"{name}: offset {offset!r} cannot be committed, it must be a whole number from 0 to 2^63 - 1"
        )


def check_offset_available(offset: int | None, high_watermark: int, epoch_start: int, name: str) -> None:
    """While a leader's HW is below the start of its epoch, the leader does not know where the committed records end.

    A new leader has every committed record, but its HW lags behind. If it answered, "latest" would go back, and a
    committed offset would look uncommitted. It knows both once the ISR has reported its LEOs. `offset`: the offset that
    a client asks for, or None for "latest".

    Kafka: `Partition.fetchOffsetForTimestamp`. KIP-207.

    Raises:
        OffsetNotAvailableException: the answer is not known yet; ask again.
    """
    may_be_committed = offset is None or high_watermark < offset <= epoch_start
    if high_watermark < epoch_start and may_be_committed:
        raise OffsetNotAvailableException(
            f"{name}: the high watermark {high_watermark} is below {epoch_start}, where the leader's epoch "
            "starts: how much is committed is not known yet"
        )


def known_high_watermark(seen: Leadership) -> int | None:
    """The HW that a partition's leader has published; None while no leader serves the partition, or as long as the
    leader does not know how much is committed: see `check_offset_available`. The lineage of a leader's row has its own
    epoch with its start, with or without records. [EP-04]"""
    row = seen.leader_row
    if row is None or seen.error:
        return None
    own = row.epochs[-1] if row.epochs else None
    is_known = own is None or own.leader_epoch != row.leader_epoch or row.high_watermark >= own.start_offset
    return row.high_watermark if is_known else None


def check_fetch_offset(offset: int, log: PartitionLog, name: str) -> None:
    """A fetch offset must be within the log. It may be above the HW, because a new leader's HW lags behind.

    Kafka: `UnifiedLog.read`, `Partition.fetchOffsetSnapshot`. KIP-207. [FE-02]

    Raises:
        OffsetOutOfRangeException: the offset is below the log start or above the LEO.
    """
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRangeException(
            f"{name}: offset {offset} is out of range, the log has {log.log_start_offset} to {log.log_end_offset}"
        )
