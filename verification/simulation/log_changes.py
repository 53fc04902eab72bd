"""The changes that a fetcher's commits make in its broker's log, decided on its newest state."""

from __future__ import annotations

from lakelog.replication.errors import FencedLeaderEpochException
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_steps import RaiseLogStarts, TruncateLogs
from lakelog.verification.simulation.rules import Rules
from lakelog.verification.simulation.tables import SimulatedLogChange, SimulatedLogState


def truncated_logs(rules: Rules, step: TruncateLogs, state: SimulatedLogState) -> SimulatedLogChange | None:
    """The batches that go, where the role is still the one that this was decided in."""
    drops: dict[TopicIdPartition, frozenset[str]] = {}
    restarts: dict[TopicIdPartition, LogEnd] = {}
    for partition, truncation in step.truncations.items():
        try:
            rules.check_truncation(state.partition(partition), truncation, str(partition))
        except FencedLeaderEpochException:
            continue
        stop = truncation.offset if truncation.restart is None else 0  # starting over, it keeps nothing below its start
        gone = [b for b in state.partition(partition).batches if b.header.next_offset > stop]
        drops.update({partition: frozenset(b.segment for b in gone)} if gone else {})
        restarts.update({} if truncation.restart is None else {partition: truncation.restart})
    return SimulatedLogChange((), drops, restarts=restarts) if drops or restarts else None


def raised_log_starts(step: RaiseLogStarts, state: SimulatedLogState) -> SimulatedLogChange | None:
    """The log starts that rise, of partitions that still follow at the epoch of the decision."""
    starts = {
        p: offset
        for p, (leader_epoch, offset) in step.starts.items()
        if state.partition(p).role.follows_at(leader_epoch) and offset > state.partition(p).log_start_offset
    }
    return SimulatedLogChange((), log_starts=starts) if starts else None
