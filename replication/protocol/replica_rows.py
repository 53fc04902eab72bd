"""Builds the row that a broker publishes for a replica from its log, its memory and its fetcher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lakelog.replication.protocol.fetch_state import FollowerState, PartitionFetchState
from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus


def replica_row(
    broker_id: int, broker_epoch: int, hosted: HostedPartition, log: PartitionLog, fetch: PartitionFetchState | None,
    published: ReplicaStatus | None, log_version: int,
) -> ReplicaStatus:  # fmt: skip
    """The current row. `fetch` counts only under the leader epoch at which the replica is hosted.

    If the log start is above the HW that this process knows, the HW has been there, because only records below the HW
    are deleted. Kafka: `UnifiedLog.updateLogStartOffset`. [DR-01, HW-02]

    Without a fetcher, as at shutdown, state and lag come from `published`, the last row that this process published
    under the same leader epoch.
    """
    registration = hosted.registration
    leads = registration.leader == broker_id
    is_fetched = fetch is not None and fetch.leader_epoch == registration.leader_epoch and not leads
    current = fetch if is_fetched else None
    is_ours = published is not None and (published.broker_epoch, published.leader_epoch) == (
        broker_epoch,
        registration.leader_epoch,
    )
    last = published if is_ours and not leads else None
    return ReplicaStatus(
        topic=registration.topic,
        topic_id=registration.topic_id,
        partition=registration.partition,
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        leader_epoch=registration.leader_epoch,
        role=LEADER_ROLE if leads else FOLLOWER_ROLE,
        state=FollowerState.FETCHING if leads else _shown_state(current, last),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=max(min(hosted.high_watermark, log.log_end_offset), log.log_start_offset),
        epochs=log.lineage,
        error=current.error if current else None,
        log_version=log_version,
        lag=current.lag if current else last.lag if last else None,
        chain=log.log_end.chain,
    )


def with_faults(rows: Iterable[ReplicaStatus], faults: Mapping[TopicIdPartition, str]) -> list[ReplicaStatus]:
    """The rows, set Offline for replicas with a broken file. [OL-01]"""
    return [offline_row(r, faults[p]) if (p := r.topic_id_partition) in faults else r for r in rows]


def offline_row(row: ReplicaStatus, fault: str) -> ReplicaStatus:
    """The row of a replica with a broken file. It claims no leadership, even if the metadata names it as leader.
    [OL-01]"""
    error = f"KAFKA_STORAGE_ERROR: {fault}"
    return replace(row, role=FOLLOWER_ROLE, state=FollowerState.OFFLINE, error=error, lag=None)


def stray_replica(topic: str, log: PartitionLog, partition: TopicIdPartition, high_watermark: int) -> HostedPartition:
    """A stray replica in the broker's memory. It keeps its HW, for the metadata that explain it again. [SR-02]"""
    registration = PartitionRegistration(
        topic, partition.topic_id, partition.partition, (), NO_LEADER, log.role.leader_epoch, ()
    )
    return HostedPartition(registration, high_watermark)


def stray_row(row: ReplicaStatus) -> ReplicaStatus:
    """The row of a stray replica. It counts neither for the ISR nor for an HW. [SR-02]"""
    return replace(row, role=FOLLOWER_ROLE, state=FollowerState.STRAY, error=None, lag=None)


def _shown_state(fetch: PartitionFetchState | None, last: ReplicaStatus | None) -> str:
    if fetch is not None:
        return fetch.shown_state
    is_told = last is not None and last.state not in (FollowerState.OFFLINE, FollowerState.STRAY)
    return last.state if last is not None and is_told else FollowerState.TRUNCATING
