"""The vocabulary in which rules answer: each step is one read, one commit on one table, or one move in memory.

A rule answers with a list of steps in the order in which they must happen; a round yields them one by one, and is sent
what came of each. Whoever asked only carries them out: the server on Delta tables, the simulation in memory, where a
crash, a pause or somebody else's commit may come between any two. So the order in which things are read and written is
a part of the rules, and is tested with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from lakelog.replication.protocol.isr import IsrChange
from lakelog.replication.protocol.partition_log import PartitionLog, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica
from lakelog.replication.protocol.rounds import carry_out


class InitialFetchState(NamedTuple):
    """What a fetcher is told of a partition: whom to follow, under which epoch, from which offset. [BL-10]"""

    topic: str
    leader: int
    leader_epoch: int
    fetch_offset: int


class StopFetching(NamedTuple):
    """No fetcher appends to these partitions any more once this is done: a round that is under way is waited for.

    Its last steps would otherwise finish the truncation, or set the HW, of the role that comes next.
    """

    partitions: tuple[TopicIdPartition, ...]


class CommitRoles(NamedTuple):
    """One commit on the log. From it on an append or a truncation under an older epoch loses, and a new leader's epoch
    has its start offset."""

    roles: Mapping[TopicIdPartition, Role]


class DeleteLogs(NamedTuple):
    """One commit on the log: all records go of these stopped partitions, and each broken file that holds nothing of an
    assigned one."""

    partitions: tuple[TopicIdPartition, ...]


class HostPartitions(NamedTuple):
    """In memory: what this broker now is of each partition."""

    registrations: Mapping[TopicIdPartition, PartitionRegistration]
    gone: tuple[TopicIdPartition, ...]


class StartFetching(NamedTuple):
    """Fetchers take partitions over; those that they have under the same leader and epoch stay as they are."""

    partitions: Mapping[TopicIdPartition, InitialFetchState]


class StopIdleFetchers(NamedTuple):
    """Fetchers without partitions end."""


class PublishReplicas(NamedTuple):
    """One commit on this broker's `replicas`: what its logs and its memory now say, and never more."""

    why: str


class AlterPartitions(NamedTuple):
    """One commit on `metadata`: each change by itself is applied, found or lost, and leads to `settle_isr_change`."""

    changes: tuple[IsrChange, ...]


class IsrChangesSettled(NamedTuple):
    """Nothing to carry out. Between the ISR changes and the new HWs the process may be killed, and others may act."""


class ReadFollowerRows(NamedTuple):
    """A read of the `replicas` of these brokers, answered with `FollowersSeen`. One that cannot be read is left out."""

    brokers: tuple[int, ...]


class FollowersSeen(NamedTuple):
    """What brokers say of their replicas, and when, by the reader's clock in seconds, the look at each began."""

    rows: Mapping[int, Mapping[TopicIdPartition, Replica]]
    began_at: Mapping[int, float]


class ReadCluster(NamedTuple):
    """In memory: what this broker has last seen of the cluster, as far as these partitions need it: `ClusterView`."""

    partitions: tuple[PartitionRegistration, ...]


class ClusterView(NamedTuple):
    """Broker epochs of all registered brokers, and of those alive and not shutting down; `effective_min_isr` of each
    partition."""

    broker_epochs: Mapping[int, int]
    alive: Mapping[int, int]
    min_isr: Mapping[TopicIdPartition, int]


class ReadLog(NamedTuple):
    """A read of this broker's log up to its newest commit, answered with the log of each of these partitions."""

    partitions: tuple[TopicIdPartition, ...]


class ReadOwnLogs(NamedTuple):
    """A read of this broker's log up to its newest commit, answered with `OwnLogs`: all partitions in the log, and
    those that `metadata` assigns to it."""

    metadata: Mapping[TopicIdPartition, PartitionRegistration]


class OwnLogs(NamedTuple):
    """The logs of a broker, and what is wrong with the files of those that are assigned to it."""

    logs: Mapping[TopicIdPartition, PartitionLog]
    faults: Mapping[TopicIdPartition, str] = {}
    has_broken_files: bool = False


class FenceIsrChanges(NamedTuple):
    """One commit on `metadata`: raises the partition epoch where this broker follows outside of the ISR, so that
    earlier ISR changes lose. Answered with those partitions."""

    partitions: tuple[TopicIdPartition, ...]


class RepairLogs(NamedTuple):
    """One commit on the log: what is broken of these partitions goes, if they follow at their leader epoch."""

    leader_epochs: Mapping[TopicIdPartition, int]


Step: TypeAlias = (
    StopFetching | CommitRoles | DeleteLogs | HostPartitions | StartFetching | StopIdleFetchers | PublishReplicas
    | AlterPartitions | IsrChangesSettled | ReadFollowerRows | ReadCluster | ReadLog | ReadOwnLogs | FenceIsrChanges
    | RepairLogs
)  # fmt: skip

Result = TypeVar("Result")
Round: TypeAlias = carry_out.Round[Step, Result]
