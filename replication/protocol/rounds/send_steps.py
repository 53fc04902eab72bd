"""The steps of a send. `steps` explains steps; `send_round` and `acknowledge_round` have their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from lakelog.replication.protocol.append import PartitionAppend
from lakelog.replication.protocol.partition_leader import Leadership
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.rounds.carry_out import Result


class ReadTopic(NamedTuple):
    """Reads the metadata of a topic. Answer: `TopicSeen`."""

    topic: str


class TopicSeen(NamedTuple):
    """A topic's partitions by number, and its `min.insync.replicas`."""

    partitions: Mapping[int, PartitionRegistration]
    min_insync_replicas: int


class AppendToLeader(NamedTuple):
    """One commit on a leader's log: appends the records of these requests that are new and that the leader accepts.

    Answer: `Appended` or the error of each partition. The handler calls `writes` with the partitions before it writes
    any of their records. After an error of the step itself, nobody knows whether the commit has landed.
    """

    leader: int
    requests: tuple[PartitionAppend, ...]
    writes: Callable[[Iterable[TopicIdPartition]], None]


class AppendToLeaders(NamedTuple):
    """Appends to several leaders at the same time. Answer: that of each append, or its error, in their order."""

    appends: tuple[AppendToLeader, ...]


class TakeIdentity(NamedTuple):
    """Takes a new id or epoch for the producer, until the deadline on the monotonic clock, in seconds. Answer:
    `ProducerIdAndEpoch`."""

    deadline: float


class ReadLeaderships(NamedTuple):
    """Reads the metadata, then the leaders' rows. Answer: `LeadershipsSeen`."""

    topic: str
    partitions: tuple[int, ...]


class LeadershipsSeen(NamedTuple):
    """The partitions that exist, by number, and the topic's `min.insync.replicas`."""

    partitions: Mapping[int, Leadership]
    min_insync_replicas: int


class ReadLeaderLogs(NamedTuple):
    """Reads a leader's log up to its newest commit. Answer: the log of each partition, or the error of reading it."""

    leader: int
    partitions: tuple[TopicIdPartition, ...]


class ReadReplicas(NamedTuple):
    """Reads a broker's `replicas`. Answer: its rows by partition."""

    broker: int


class Pause(NamedTuple):
    """Waits for a poll interval, but not beyond the deadline on the monotonic clock, in seconds. `is_backoff`: what
    follows is another attempt, of which there may be few. Otherwise it is a look, and news may end the pause early."""

    deadline: float
    is_backoff: bool = False


SendStep: TypeAlias = (
    ReadTopic | TakeIdentity | AppendToLeader | AppendToLeaders | ReadLeaderships | ReadLeaderLogs | ReadReplicas
    | Pause
)  # fmt: skip

Round: TypeAlias = carry_out.Round[SendStep, Result]
