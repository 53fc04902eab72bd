"""Decides the steps of a follower's round: truncate batches that the leader lacks, then append batches at the log end.

Kafka: `AbstractFetcherThread.doWork` = `maybeTruncate`, then `maybeFetch`. [FT-02]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lakelog.replication.errors import FencedLeaderEpochException, OffsetOutOfRangeException
from lakelog.replication.protocol.append_plan import AppendPlan, FetchedBatch
from lakelog.replication.protocol.leader_epoch import covers
from lakelog.replication.protocol.log_retention import follower_log_start
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds.broker_steps import PublishReplicas
from lakelog.replication.protocol.rounds.fetch_steps import (
    AdvanceFetchOffsets,
    AppendFetched,
    FetchStep,
    FinishTruncation,
    RaiseLogStarts,
    TruncateLogs,
)
from lakelog.replication.protocol.truncation import truncation_for

Logs = Mapping[TopicIdPartition, PartitionLog]
LeaderRows = Mapping[TopicIdPartition, ReplicaStatus]


def maybe_truncate(
    truncating: Collection[TopicIdPartition], fetching: Collection[TopicIdPartition], logs: Logs, leaders: LeaderRows,
    leader_batches: Mapping[TopicIdPartition, Sequence[LogEnd]],
) -> list[FetchStep]:  # fmt: skip
    """The truncations of Truncating partitions, before anything is fetched. A Fetching partition whose log ends below
    the leader's log start is truncated too: its leader's retention has overtaken it, so it must start over.

    The rows say Truncating until the truncation is committed, so no row claims records that are about to go.
    `leader_batches`: for diverged partitions, the ends of the leader's batches.

    Kafka: `AbstractFetcherThread.maybeTruncate`, `fetchOffsetAndTruncate`. [TR-06, TR-07, TR-08, FT-14]
    """
    behind = {p for p in fetching if p in leaders and logs[p].log_end_offset < leaders[p].log_start_offset}
    due = tuple(sorted({p for p in truncating if p in leaders} | behind))
    if not due:
        return []
    truncations = {p: truncation_for(logs[p], leaders[p], leader_batches.get(p)) for p in due}
    real = {p: c for p, c in truncations.items() if c.offset < logs[p].log_end_offset or c.restart is not None}
    return [*([TruncateLogs(real)] if real else []), FinishTruncation(due), PublishReplicas("truncated")]


def may_append(batch: FetchedBatch, leader: ReplicaStatus, fetch_offset: int) -> bool:
    """Whether the leader's lineage still has the batch, from the fetch offset on.

    A late read may bring a batch that the leader has truncated since. Offsets below the fetch offset are not checked,
    because the leader may have deleted them. [FT-07]
    """
    return covers(leader.epochs, batch.leader_epoch, max(batch.base_offset, fetch_offset), batch.last_offset)


def append_fetched(plan: AppendPlan, leaders: LeaderRows, logs: Logs) -> list[FetchStep]:
    """The steps of an append: the log first, then the row, so a row never claims more than its log.

    Each log start follows the leader's, but not beyond the new log end.

    Kafka: `ReplicaFetcherThread.processPartitionData`. [FT-09, HW-03, DR-02]
    """
    epochs = {p: leaders[p].leader_epoch for p in {batch.topic_id_partition for batch in plan.batches}}
    ends = {p: plan.log_ends[p].offset for p in leaders}
    advance = AdvanceFetchOffsets(ends, {p: row.high_watermark for p, row in leaders.items()})
    starts = {
        p: (
            row.leader_epoch,
            follower_log_start(logs[p].log_start_offset, plan.log_ends[p].offset, row.log_start_offset),
        )
        for p, row in leaders.items()
    }
    raised = {p: told for p, told in starts.items() if told[1] > logs[p].log_start_offset}
    return [
        *([AppendFetched(plan, epochs)] if plan.batches else []),
        advance,
        *([RaiseLogStarts(raised)] if raised else []),
        PublishReplicas("fetched", may_wait=True),
    ]


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
