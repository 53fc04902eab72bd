"""Which records some replicas lack, by the rows that brokers have published. One rule for each question of what is at
risk or lost: with a dead leader, with all replicas in sync, with an unclean election. `frames/cluster_state` shows by
the same rule which records only one replica has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.replica_status import LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.truncation import truncation_offset


class MissingRecords(NamedTuple):
    """Offsets that no holder has. `committed`: below the HW, acknowledged with acks=all. `uncommitted`: from the HW up
    to the leader's LEO; a send with acks=1 was told that they are there."""

    committed: range
    uncommitted: range


def missing_records(
    registration: PartitionRegistration,
    rows: Mapping[int, ReplicaStatus],
    holders: Collection[int],
    without_log: Collection[int] = (),
) -> MissingRecords | None:
    """The records of a partition that none of the `holders` has; None if no row tells what was committed.

    `rows`: by broker, those of dead brokers too. `without_log`: members of the ISR that have lost the log with which
    they were in sync. Another member of the ISR has all committed records, whatever its row says, because rows may be
    read in any order. Other holders have what their rows prove under the lineage of the last leader. A row that says
    Truncating or Offline proves nothing. [HW-01, HW-02, TR-03]
    """
    was_leader = (registration.leader,) if registration.leader != NO_LEADER else registration.isr
    if not rows.keys() & set(was_leader):
        return None
    last = _row_of_the_last_leader(rows.values())
    ends = {broker: _matching_end(row, last) for broker, row in rows.items()}
    told = [min(row.high_watermark, end) for row in rows.values() if (end := ends[row.broker_id]) is not None]
    high_watermark = max((last.log_start_offset, *told))
    held = [last.log_start_offset, *(end for broker in holders if (end := ends.get(broker)) is not None)]
    if (set(registration.isr) - set(without_log)) & set(holders):
        held.append(high_watermark)
    end = max(held)
    return MissingRecords(
        range(min(end, high_watermark), high_watermark), range(max(end, high_watermark), last.log_end_offset)
    )


def _row_of_the_last_leader(rows: Iterable[ReplicaStatus]) -> ReplicaStatus:
    """The leader's row under the newest leader epoch; without a leader's row, the one that has come furthest."""

    def rank(row: ReplicaStatus) -> tuple[bool, int, int]:
        newest = row.epochs[-1].leader_epoch if row.epochs else -1
        return (True, row.leader_epoch, 0) if row.role == LEADER_ROLE else (False, newest, row.log_end_offset)

    return max(rows, key=rank)


def _matching_end(row: ReplicaStatus, last: ReplicaStatus) -> int | None:
    """The end of what a replica has of the last leader's records; None if its row does not tell."""
    if row.state not in (FollowerState.FETCHING, FollowerState.DELAYED):
        return None
    return min(truncation_offset(row.epochs, row.log_end_offset, last.epochs), last.log_end_offset)
