"""Whether the replicas of a partition have the same history, by the chains of their logs alone."""

from collections.abc import Mapping

from lakelog.replication.protocol.partition_log import PartitionLog

SAME, DIFFERS = "same", "differs"


def same_history(logs: Mapping[int, PartitionLog]) -> dict[int, str | None]:
    """For the log of each broker: whether it has the records of the leader's, as far as both go.

    Without a leader the longest log is the measure. None where the two have no offset in common whose chain both know,
    as when one begins where the other ends. Raft: the log matching property.
    """
    measure = max(logs.values(), key=_rank)
    return {broker: _compare(log, measure) for broker, log in logs.items()}


def _rank(log: PartitionLog) -> tuple[bool, int, int]:
    return log.role.is_leader, log.role.leader_epoch, log.log_end_offset


def _compare(log: PartitionLog, measure: PartitionLog) -> str | None:
    end = min(log.log_end_offset, measure.log_end_offset)
    chains = log.chain_at(end), measure.chain_at(end)
    if None in chains:
        return None
    return SAME if chains[0] == chains[1] else DIFFERS
