"""The high watermark (HW): readers see the records below it, and those records survive a change of leader."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def leader_high_watermark(
    current: int,
    leader_log_end_offset: int,
    replica_log_end_offsets: Mapping[int, int],
    maximal_isr: Collection[int],
    leader: int,
    caught_up: Collection[int],
    min_isr: int,
) -> int:
    """The leader's HW: the lowest LEO of the ISR and of the replicas that are about to join it.

    Args:
        current: the HW so far under this leader epoch; the result is never below it.
        leader_log_end_offset: the leader's own LEO.
        replica_log_end_offsets: the LEO of each broker whose replica row counts. If a replica that the HW waits for is
            missing here, the HW stays, because that replica may lack any record.
        maximal_isr: the largest ISR that may be in force, with the leader. Members that an unconfirmed shrink removes
            are still in it. A replica whose join is unconfirmed is not: it belongs in `caught_up`, where it holds the
            HW back without counting towards `min_isr`.
        leader: broker id of the leader.
        caught_up: assigned replicas outside the ISR that were caught up within the lag time. They hold the HW back;
            otherwise a fast leader would always move it past them, and they could never join.
        min_isr: members that the ISR needs for the HW to rise, see `effective_min_isr`.

    Kafka: `Partition.maybeIncrementLeaderHW`. KIP-966: while the ISR is below `min.insync.replicas` the HW stays. So
    a record that only the last member has does not count as committed. [HW-01]
    """
    if len(set(maximal_isr)) < min_isr:
        return current
    waited_for = {*maximal_isr, *caught_up} - {leader}
    if not waited_for <= replica_log_end_offsets.keys():
        return current
    least = min((leader_log_end_offset, *(replica_log_end_offsets[replica] for replica in waited_for)))
    return max(current, least)


def follower_high_watermark(leader_high_watermark: int, log_end_offset: int) -> int:
    """A follower's HW: the leader's HW, but at most the follower's LEO.

    Kafka: `ReplicaFetcherThread.processPartitionData`. [HW-03]
    """
    return min(leader_high_watermark, log_end_offset)


def effective_min_isr(min_insync_replicas: int, replicas: int) -> int:
    """The number of members that the ISR needs: `min.insync.replicas`, but at most the number of replicas.

    A topic with fewer replicas than `min.insync.replicas` could never commit a record otherwise.

    Kafka: `Partition.effectiveMinIsr`. KIP-966. [HW-01]
    """
    return min(min_insync_replicas, replicas)
