"""What a follower does in one round: truncate what its leader's history does not have, then append what follows its
log end.

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
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.protocol.rounds.fetch_steps import (
    AdvanceFetchOffsets,
    AppendFetched,
    FetchStep,
    FinishTruncation,
    RaiseLogStarts,
    TruncateLogs,
)
from lakelog.replication.protocol.rounds.steps import PublishReplicas
from lakelog.replication.protocol.truncation import truncation_for

Logs = Mapping[TopicIdPartition, PartitionLog]
LeaderRows = Mapping[TopicIdPartition, Replica]


def maybe_truncate(
    truncating: Collection[TopicIdPartition], fetching: Collection[TopicIdPartition], logs: Logs, leaders: LeaderRows,
    leader_batches: Mapping[TopicIdPartition, Sequence[LogEnd]],
) -> list[FetchStep]:  # fmt: skip
    """The truncations of the partitions that are Truncating, before anything of them is fetched; and of those that are
    Fetching what their leader's retention has overtaken, which can only start over.

    The rows say Truncating until the truncation is in the log: a row never claims what is about to go.
    `leader_batches`: of the partitions that have diverged, where their leaders' batches end.

    Kafka: `AbstractFetcherThread.maybeTruncate`, `fetchOffsetAndTruncate`. [TR-06, TR-07, TR-08, FT-14]
    """
    behind = {p for p in fetching if p in leaders and logs[p].log_end_offset < leaders[p].log_start_offset}
    due = tuple(sorted({p for p in truncating if p in leaders} | behind))
    if not due:
        return []
    truncations = {p: truncation_for(logs[p], leaders[p], leader_batches.get(p)) for p in due}
    real = {p: c for p, c in truncations.items() if c.offset < logs[p].log_end_offset or c.restart is not None}
    return [*([TruncateLogs(real)] if real else []), FinishTruncation(due), PublishReplicas("truncated")]


def may_append(batch: FetchedBatch, leader: Replica, fetch_offset: int) -> bool:
    """Whether the leader's history still has the wanted part of the batch: a late read may bring batches that have been
    truncated since. Offsets below the fetch offset are not checked, as the leader may have deleted them. [FT-07]"""
    return covers(leader.epochs, batch.leader_epoch, max(batch.base_offset, fetch_offset), batch.last_offset)


def append_fetched(plan: AppendPlan, leaders: LeaderRows, logs: Logs) -> list[FetchStep]:
    """The log first, the row then: a row never claims more than its log. Log starts follow the leaders', as far as the
    logs go by then.

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
        PublishReplicas("fetched"),
    ]


def check_follower_append(log: PartitionLog, leader_epoch: int, previous: str, name: str) -> None:
    """A follower appends in the role that it fetched in, and only what follows its own chain.

    Kafka: `Partition.appendRecordsToFollowerOrFutureReplica`, `ReplicaFetcherThread`. Raft: AppendEntries. [AP-03,
    FT-10]

    Raises:
        FencedLeaderEpochException: the replica was told something else meanwhile.
        OffsetOutOfRangeException: the log ends elsewhere.
    """
    if not log.role.follows_at(leader_epoch):
        raise FencedLeaderEpochException(
            f"{name}: nothing appended: it no longer follows at leader epoch {leader_epoch} ({log.role})"
        )
    if log.log_end.chain != previous:
        raise OffsetOutOfRangeException(
            f"{name}: the records fetched follow the chain {previous}, but the log ends at {log.log_end}"
        )
