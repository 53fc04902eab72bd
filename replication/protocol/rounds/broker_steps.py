"""Steps: the vocabulary of rules and rounds. Each step is one read, one commit on one table, or one move in memory.

A rule returns a list of steps in their required order. A round yields them one by one and receives each answer. The
server carries them out on Delta tables, the simulation in memory, with a crash, a pause or another's commit between any
two. So the order of reads and writes is part of the rules, and is tested with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from lakelog.replication.protocol.isr import IsrChange
from lakelog.replication.protocol.partition_log import PartitionLog, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds import carry_out


class InitialFetchState(NamedTuple):
    """What a fetcher must know of a new partition: leader, leader epoch, and the offset to fetch from. [BL-10]"""

    topic: str
    leader: int
    leader_epoch: int
    fetch_offset: int


class StopFetching(NamedTuple):
    """Removes partitions from their fetchers, and waits until running rounds no longer write to them.

    Otherwise their last steps would finish the truncation, or set the HW, of the next role.
    """

    partitions: tuple[TopicIdPartition, ...]


class CommitRoles(NamedTuple):
    """One commit on the log: records roles. It fences appends and truncations under older epochs, and fixes the start
    offset of a new leader's epoch."""

    roles: Mapping[TopicIdPartition, Role]


class DeleteLogs(NamedTuple):
    """One commit on the log: deletes all records of these stopped partitions, and broken files without assigned
    partitions."""

    partitions: tuple[TopicIdPartition, ...]


class HostPartitions(NamedTuple):
    """In memory: hosts partitions under these registrations, and forgets those in `gone`."""

    registrations: Mapping[TopicIdPartition, PartitionRegistration]
    gone: tuple[TopicIdPartition, ...]


class StartFetching(NamedTuple):
    """Assigns partitions to fetchers; those already fetched under the same leader and epoch stay as they are."""

    partitions: Mapping[TopicIdPartition, InitialFetchState]


class StopIdleFetchers(NamedTuple):
    """Stops fetchers without partitions."""


class PublishReplicas(NamedTuple):
    """One commit on this broker's `replicas`: rows that claim what its logs and its memory have, and never more.

    `may_wait`: rows in which only a follower's HW has risen wait for the next commit, a heartbeat later at most. Nobody
    waits for them: a new leader has its HW in memory. Kafka writes its checkpoint of HWs every 5 s. [HW-02]
    """

    why: str
    may_wait: bool = False


class AlterPartitions(NamedTuple):
    """One commit on `metadata` for these changes, each with an outcome of its own. Answer: `IsrOutcomes`."""

    changes: tuple[IsrChange, ...]


class IsrChangesSettled(NamedTuple):
    """Does nothing. Between the ISR changes and the new HWs the process may be killed, and others may act."""


class ReadFollowerRows(NamedTuple):
    """Reads the `replicas` of these brokers. Answer: `FollowersSeen`, without brokers that cannot be read."""

    brokers: tuple[int, ...]


class FollowersSeen(NamedTuple):
    """The rows of each broker, and when the read of each began, in seconds of the reader's clock. Rows that have not
    changed since the last answer are the same objects, as far as the reader knows."""

    rows: Mapping[int, Mapping[TopicIdPartition, ReplicaStatus]]
    began_at: Mapping[int, float]


class ReadCluster(NamedTuple):
    """In memory: asks for this broker's last view of the cluster. Answer: `ClusterView`."""


class ClusterView(NamedTuple):
    """The broker epochs of all registered brokers; those of brokers that are alive and not shutting down; and the
    `effective_min_isr` of a partition. `settings` is another object once `min_isr` may answer something else."""

    broker_epochs: Mapping[int, int]
    alive: Mapping[int, int]
    min_isr: Callable[[PartitionRegistration], int]
    settings: object = None


class ReadLog(NamedTuple):
    """Reads this broker's log up to its newest commit. `since`: the mark of an earlier answer, None if there is none.
    Answer: `LogsSeen`."""

    since: object


class LogsSeen(NamedTuple):
    """The log of each partition; the partitions that may have changed since the mark of `ReadLog`, None if all may
    have; and the mark of this answer."""

    log_of: Callable[[TopicIdPartition], PartitionLog]
    changed: Collection[TopicIdPartition] | None
    mark: object


class ReadOwnLogs(NamedTuple):
    """Reads this broker's log up to its newest commit. Answer: `OwnLogs` of all partitions in it, and of all that
    `metadata` assigns to the broker."""

    metadata: Mapping[TopicIdPartition, PartitionRegistration]


class OwnLogs(NamedTuple):
    """A broker's logs, and the faults in the files of its assigned partitions."""

    logs: Mapping[TopicIdPartition, PartitionLog]
    faults: Mapping[TopicIdPartition, str] = {}
    has_broken_files: bool = False


class FenceIsrChanges(NamedTuple):
    """One commit on `metadata`: raises the partition epoch where this broker follows outside the ISR, so that earlier
    ISR changes lose. Answer: those partitions."""

    partitions: tuple[TopicIdPartition, ...]


class RepairLogs(NamedTuple):
    """One commit on the log: removes the broken files of these partitions, and truncates each partition at its first
    broken batch, if it still follows at its leader epoch."""

    leader_epochs: Mapping[TopicIdPartition, int]


Step: TypeAlias = (
    StopFetching | CommitRoles | DeleteLogs | HostPartitions | StartFetching | StopIdleFetchers | PublishReplicas
    | AlterPartitions | IsrChangesSettled | ReadFollowerRows | ReadCluster | ReadLog | ReadOwnLogs | FenceIsrChanges
    | RepairLogs
)  # fmt: skip

Result = TypeVar("Result")
Round: TypeAlias = carry_out.Round[Step, Result]
