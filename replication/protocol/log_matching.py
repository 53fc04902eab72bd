"""Detects that a follower's log differs from its leader's, and reports it.

Raft: the log matching property. [TR-08]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol.fetch_state import FetchStates
from lakelog.replication.protocol.follow import LeaderRows, Logs
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds.broker_rounds import BrokerRules
from lakelog.replication.protocol.rounds.broker_steps import PublishReplicas
from lakelog.replication.protocol.rounds.fetch_steps import (
    LeaderBatches,
    ReadLeaderBatches,
    ReadLeaderRows,
    Round,
    TellDiverged,
)
from lakelog.replication.protocol.truncation import are_of_the_log, has_other_history, leader_lost_its_end

DIVERGED = "DIVERGED: the log has other batches than its leader's under the same leader epochs"
LOST_END = "DIVERGED: the leader's log has lost records of its own epoch; waiting for another leader epoch"

Ends: TypeAlias = Mapping[TopicIdPartition, Sequence[LogEnd]]
Errors: TypeAlias = Mapping[TopicIdPartition, LakelogException]


def compare_rows(states: FetchStates, logs: Logs, leaders: LeaderRows) -> Round[None]:
    """Marks fetched partitions as diverged if their leader's row has another chain."""
    found = [p for p in states.fetchable() if p in leaders and has_other_history(logs[p], leaders[p])]
    yield from tell_diverged(states, found)


def tell_diverged(states: FetchStates, partitions: Iterable[TopicIdPartition]) -> Round[None]:
    """Marks partitions as diverged and publishes their rows, which count for nothing until the truncation is done."""
    found = tuple(sorted(partitions))
    if found:
        states.diverged(found, DIVERGED)
        yield TellDiverged(found)
        yield PublishReplicas("diverged")


def leader_batches(
    states: FetchStates, logs: Logs, leaders: LeaderRows, rules: BrokerRules
) -> Round[tuple[Ends, Errors]]:  # fmt: skip
    """The ends of the leaders' batches, for partitions to truncate whose epochs do not tell where; and the errors of
    the partitions for which they cannot be read.

    A log does not say whether its broker leads, or whether it is the log that the row describes. So the rows are read
    again after the log. [TR-02, TR-08]
    """
    wanted = {
        p: logs[p].first_offset
        for p, state in states.truncating().items()
        if p in leaders and (state.diverged or has_other_history(logs[p], leaders[p]))
    }
    if not wanted:
        return {}, {}
    found: LeaderBatches = yield ReadLeaderBatches(wanted, {p: leaders[p].topic for p in wanted})
    rows: LeaderRows = yield ReadLeaderRows(tuple(wanted))
    doubts = {p: _doubt(ends, leaders[p], rows.get(p), wanted[p], rules) for p, ends in found.ends.items()}
    failed = {**found.failed, **{p: error for p, error in doubts.items() if error is not None}}
    return {p: ends for p, ends in found.ends.items() if p not in failed}, failed


def lost_ends(logs: Logs, leaders: LeaderRows, batches: Ends) -> dict[TopicIdPartition, str]:
    """The partitions whose leader's log has lost its end, with the error text."""
    return {p: LOST_END for p, ends in batches.items() if leader_lost_its_end(logs[p], leaders[p], ends)}


def _doubt(
    ends: Sequence[LogEnd], before: ReplicaStatus, now: ReplicaStatus | None, first: int, rules: BrokerRules
) -> LakelogException | None:  # fmt: skip
    """Why the batches that were read must not decide a truncation; None if they may."""
    partition = before.topic_id_partition
    error = rules.check_leader_row(now, partition, before.leader_epoch)
    if error is not None or (now is not None and are_of_the_log(ends, before, now, first)):
        return error
    return KafkaStorageException(
        f"{before.topic}-{partition.partition}: not truncated: the log of broker {before.broker_id} is not the one "
        f"that its row describes, which ends at offset {before.log_end_offset}"
    )
