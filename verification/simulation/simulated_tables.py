"""The tables of a cluster in memory. Every version stays readable; a commit wins only directly after the newest one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.partition_log import PartitionLog, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd, TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.topic import Topic

State = TypeVar("State")
Values = tuple[int, ...]


class Metadata(NamedTuple):
    """`metadata`: the registration of each partition, and the highest controller epoch that has claimed the table.

    `request`: the id of the last admin request that was carried out.
    """

    partitions: Mapping[TopicIdPartition, PartitionRegistration]
    controller_epoch: int = 0
    request: str | None = None


class Topics(NamedTuple):
    """`topics`: topics by name, and the highest controller epoch that has claimed the table."""

    topics: Mapping[str, Topic]
    controller_epoch: int = 0


class Admin(NamedTuple):
    """`admin`: the waiting requests, oldest first, and the highest controller epoch that has claimed the table."""

    requests: tuple[AdminRequest, ...] = ()
    controller_epoch: int = 0


class Claimed(Protocol):
    """The state of a table that controllers claim."""

    @property
    def controller_epoch(self) -> int:
        """The highest controller epoch that has claimed the table."""
        ...


class BrokerRow(NamedTuple):
    """A row of `brokers`. `metadata_version` is the version that the broker has applied."""

    broker_epoch: int
    shutting_down: bool = False
    metadata_version: int = -1


class Rows(NamedTuple):
    """`replicas` of one broker, and the highest broker epoch that has claimed the table."""

    broker_epoch: int
    replicas: Mapping[TopicIdPartition, ReplicaStatus]


class SimulatedLogState(NamedTuple):
    """`log` of one broker, and the highest broker epoch that has claimed the table."""

    broker_epoch: int
    partitions: Mapping[TopicIdPartition, PartitionLog]

    def partition(self, partition: TopicIdPartition) -> PartitionLog:
        """The partition's log; an empty one if the table has no record of it."""
        return self.partitions.get(partition) or PartitionLog()


class NewBatch(NamedTuple):
    """A batch that a commit adds, with the values of its records."""

    header: BatchHeader
    segment: str
    values: Values


class SimulatedLogChange(NamedTuple):
    """The changes of one commit in a log. `restarts`: the new starts of logs that have lost all batches."""

    adds: tuple[NewBatch, ...] = ()
    drops: Mapping[TopicIdPartition, frozenset[str]] = {}
    roles: Mapping[TopicIdPartition, Role] = {}
    log_starts: Mapping[TopicIdPartition, int] = {}
    restarts: Mapping[TopicIdPartition, LogEnd] = {}
    claim: int | None = None

    @property
    def touched(self) -> set[TopicIdPartition]:
        """The partitions that it changes."""
        added = (batch.header.topic_id_partition for batch in self.adds)
        return {*added, *self.drops, *self.roles, *self.log_starts, *self.restarts}


class VersionedTable(Generic[State]):
    """A table of the cluster, or of the broker `owner`. A commit wins only directly after the version that was read."""

    def __init__(self, name: str, state: State, owner: int = 0) -> None:
        self.name = name
        self.owner = owner
        self._versions = [state]
        self._steps = [0]
        self.changes: list[SimulatedLogChange | None] = [None]

    @property
    def newest(self) -> int:
        """The newest version."""
        return len(self._versions) - 1

    def at(self, version: int) -> State:
        """The state at a version."""
        return self._versions[version]

    def version_at(self, step: int) -> int:
        """The version that was the newest at the end of that step of the history."""
        return max(0, bisect_right(self._steps, step) - 1)

    def commit(self, expected: int, state: State, step: int, change: SimulatedLogChange | None = None) -> bool:
        """Compare-and-set: wins only if `expected` is the newest version."""
        if expected != self.newest:
            return False
        self._versions.append(state)
        self._steps.append(step)
        self.changes.append(change)
        return True


def replay(state: SimulatedLogState, change: SimulatedLogChange) -> SimulatedLogState:
    """The state of a log after a commit."""
    partitions = dict(state.partitions)
    for partition in change.touched:
        partitions[partition] = state.partition(partition).copy()
    for partition, segments in change.drops.items():
        partitions[partition].drop(segments)
    for partition, role in change.roles.items():
        log = partitions[partition]
        is_new = role.is_leader and log.role.before_stray != role
        log.role = role
        log.epoch_start = log.log_end_offset if is_new else log.epoch_start
    for partition, offset in change.log_starts.items():
        partitions[partition].start_at(offset)
    for partition, start in change.restarts.items():
        partitions[partition].start_at(start.offset)
        partitions[partition].start_chain = start.chain
    for batch in sorted(change.adds, key=lambda added: added.header.base_offset):
        partitions[batch.header.topic_id_partition].add(batch.header, batch.segment)
    claim = state.broker_epoch if change.claim is None else max(change.claim, state.broker_epoch)
    return SimulatedLogState(claim, partitions)
