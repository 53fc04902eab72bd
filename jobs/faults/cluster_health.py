"""Whether all is well with a cluster of processes again: who is in sync, who controls it, and what replicas hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakelog.jobs.faults.broker_process import ControllerProcess
from lakelog.jobs.faults.cluster_processes import STANDS, ClusterProcesses
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica

# Where a partition's log begins, and where it ends.
Bounds = Mapping[TopicIdPartition, tuple[int, int]]


class ClusterHealth:
    """Each question is answered with what is lacking, in words; with none if nothing is."""

    def __init__(self, view: TopicView, processes: ClusterProcesses, topics: Sequence[str]) -> None:
        self._view = view
        self._processes = processes
        self._topics = topics

    def active(self) -> ControllerProcess | None:
        """The controller that holds the lease, if it is one that runs."""
        return self._processes.active(self._view.cluster.lease.read())

    def partitions(self) -> list[PartitionRegistration]:
        """Of all topics, in order."""
        return [registration for topic in self._topics for registration in self._view.partitions(topic).values()]

    def lacks_members(self) -> str:
        """One controller is active and the others are there too; every partition has a leader and all brokers in its
        ISR, and none is being moved."""
        if self.active() is None:
            return "no controller is active"
        absent = [c.name for c in self._processes.controllers.values() if not c.has_said(STANDS)]
        if absent:
            return f"{', '.join(absent)} does not stand for election"
        return next((word for word in map(self._lacks_replica, self.partitions()) if word), "")

    def _lacks_replica(self, found: PartitionRegistration) -> str:
        is_whole = set(found.isr) == set(found.replicas) == set(self._processes.brokers)
        if found.leader in found.replicas and is_whole and not is_reassigning(found):
            return ""
        return (
            f"{found.name} has leader {found.leader}, ISR {found.isr}, replicas {found.replicas}, "
            f"adding {found.adding_replicas}, removing {found.removing_replicas}"
        )

    def is_alone(self, broker: int) -> bool:
        """Whether a partition has this broker in its ISR, and no other."""
        return any(set(found.isr) == {broker} for found in self.partitions())

    def bounds(self) -> Bounds:
        """Where the leaders' logs now begin and end."""
        logs = {r: self._view.log(r.leader).refresh().partition(r.topic_id_partition) for r in self.partitions()}
        return {r.topic_id_partition: (log.log_start_offset, log.log_end_offset) for r, log in logs.items()}

    def lacks_records(self, bounds: Bounds) -> str:
        """Each broker says that it has all partitions from their beginning to their end, under its broker epoch."""
        leaders = {r.topic_id_partition: r.leader for r in self.partitions()}
        return next((word for b in self._processes.brokers if (word := self._lacks(b, bounds, leaders))), "")

    def _lacks(self, broker: int, bounds: Bounds, leaders: Mapping[TopicIdPartition, int]) -> str:
        try:
            rows, registered = self._view.replicas(broker), self._view.cluster.refresh_brokers()[broker]
        except LakelogException as error:
            return f"broker {broker}: {error}"
        if rows.keys() - bounds.keys():
            return f"broker {broker} still says something of {sorted(rows.keys() - bounds.keys())}"
        for partition, (start, end) in bounds.items():
            row = rows.get(partition)
            if row is None or row.broker_epoch != registered.broker_epoch:
                return f"broker {broker} says nothing of {partition}"
            if not _has(row, start, end, leaders[partition] == broker):
                return f"broker {broker} does not have offsets {start} to {end}: {row}"
        return ""


def _has(row: Replica, start: int, end: int, leads: bool) -> bool:
    is_complete = row.log_start_offset >= start and row.log_end_offset >= end
    return row.state == FollowerState.FETCHING and is_complete and (row.high_watermark >= end or not leads)
