"""Checks whether a cluster of processes has recovered: its ISRs, its active controller and its replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.verification.clusters.process_cluster import STANDS, ControllerProcess, ProcessCluster

# The log start offset and the log end offset of each partition.
Bounds = Mapping[TopicIdPartition, tuple[int, int]]


class ClusterHealth:
    """Checks a cluster. Each check returns the first fault as text, or an empty text if there is none."""

    def __init__(self, view: TopicView, cluster: ProcessCluster, topics: Sequence[str]) -> None:
        self._view = view
        self._cluster = cluster
        self._topics = topics

    def active(self) -> ControllerProcess | None:
        """The running controller that holds the lease, None if there is none."""
        name = self._cluster.active(self._view.cluster.lease.read())
        return self._cluster.controllers[name] if name else None

    def partitions(self) -> list[PartitionRegistration]:
        """The partitions of all topics, in order."""
        return [registration for topic in self._topics for registration in self._view.partitions(topic).values()]

    def lacks_members(self) -> str:
        """Checks that one controller is active and the others stand by, that every partition has a leader and a full
        ISR, and that none is being reassigned."""
        if self.active() is None:
            return "no controller is active"
        absent = [c.name for c in self._cluster.controllers.values() if not c.has_said(STANDS)]
        if absent:
            return f"{', '.join(absent)} does not stand for election"
        return next((word for word in map(self._lacks_replica, self.partitions()) if word), "")

    def _lacks_replica(self, found: PartitionRegistration) -> str:
        is_whole = set(found.isr) == set(found.replicas) == set(self._cluster.brokers)
        if found.leader in found.replicas and is_whole and not is_reassigning(found):
            return ""
        return (
            f"{found.name} has leader {found.leader}, ISR {found.isr}, replicas {found.replicas}, "
            f"adding {found.adding_replicas}, removing {found.removing_replicas}"
        )

    def is_alone(self, broker: int) -> bool:
        """Whether this broker is the only member of some ISR."""
        return any(set(found.isr) == {broker} for found in self.partitions())

    def bounds(self) -> Bounds:
        """The log start offset and log end offset of each partition's leader now."""
        logs = {r: self._view.log(r.leader).refresh().partition(r.topic_id_partition) for r in self.partitions()}
        return {r.topic_id_partition: (log.log_start_offset, log.log_end_offset) for r, log in logs.items()}

    def lacks_records(self, bounds: Bounds) -> str:
        """Checks that each broker's rows claim all partitions within `bounds`, under its current broker epoch."""
        leaders = {r.topic_id_partition: r.leader for r in self.partitions()}
        return next((word for b in self._cluster.brokers if (word := self._lacks(b, bounds, leaders))), "")

    def _lacks(self, broker: int, bounds: Bounds, leaders: Mapping[TopicIdPartition, int]) -> str:
        try:
            rows, registered = self._view.replicas(broker), self._view.cluster.refresh_brokers()[broker]
        except LakelogException as error:
            return f"broker {broker}: {error}"
        if rows.keys() - bounds.keys():
            return f"broker {broker} still has rows of {sorted(rows.keys() - bounds.keys())}"
        for partition, (start, end) in bounds.items():
            row = rows.get(partition)
            if row is None or row.broker_epoch != registered.broker_epoch:
                return f"broker {broker} has no row of {partition}"
            if not _has(row, start, end, leaders[partition] == broker):
                return f"broker {broker} does not have offsets {start} to {end}: {row}"
        return ""


def _has(row: ReplicaStatus, start: int, end: int, leads: bool) -> bool:
    is_complete = row.log_start_offset >= start and row.log_end_offset >= end
    return row.state == FollowerState.FETCHING and is_complete and (row.high_watermark >= end or not leads)
