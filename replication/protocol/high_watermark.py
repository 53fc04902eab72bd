"""The high watermark (HW): readers see what lies below it, and what lies below it survives a change of leader."""

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
    """The leader's HW: the least LEO over the ISR and over replicas that are about to join it.

    Args:
        current: the HW so far, in this leadership; the answer is never below it.
        leader_log_end_offset: the leader's own LEO.
        replica_log_end_offsets: broker to LEO, from replica rows that count and from no others. A member that is
            missing here may lack anything, so that the HW stays where it is.
        maximal_isr: the ISR as far as it can be in force, with the leader. While a shrink is not yet confirmed, those
            that it takes out are still members. A replica whose joining is not yet confirmed is not one: it belongs
            in `caught_up`, where it holds the HW back without counting towards `min_isr`.
        leader: the broker that leads.
        caught_up: assigned replicas outside the ISR that were caught up within the lag limit. They hold the HW back,
            as a fast leader would otherwise move it past them for ever and they could never join.
        min_isr: members that the ISR needs for the HW to move, see `effective_min_isr`.

    Kafka: `Partition.maybeIncrementLeaderHW`. KIP-966: below `min.insync.replicas` the HW stands still, so that a
    record that the last member alone holds is never taken for committed. [HW-01]
    """
    if len(set(maximal_isr)) < min_isr:
        return current
    waited_for = {*maximal_isr, *caught_up} - {leader}
    if not waited_for <= replica_log_end_offsets.keys():
        return current
    least = min((leader_log_end_offset, *(replica_log_end_offsets[replica] for replica in waited_for)))
    return max(current, least)


def follower_high_watermark(leader_high_watermark: int, log_end_offset: int) -> int:
    """A follower's HW: the leader's, but never above what the follower itself holds.

    Kafka: `ReplicaFetcherThread.processPartitionData`. [HW-03]
    """
    return min(leader_high_watermark, log_end_offset)


def effective_min_isr(min_insync_replicas: int, replicas: int) -> int:
    """Members that the ISR needs: `min.insync.replicas`, but no more than there are replicas.

    Kafka: `Partition.effectiveMinIsr`. KIP-966. Otherwise a topic with fewer replicas than the setting asks for could
    never commit a record. [HW-01]
    """
    return min(min_insync_replicas, replicas)
