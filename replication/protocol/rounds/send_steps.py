"""The steps of a send: see `rounds`, and `send_round` and `acknowledge_round` for their order."""

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
    """A read of the metadata, answered with `TopicSeen`."""

    topic: str


class TopicSeen(NamedTuple):
    """A topic's partitions by number, and its `min.insync.replicas`."""

    partitions: Mapping[int, PartitionRegistration]
    min_insync_replicas: int


class AppendToLeader(NamedTuple):
    """One commit on a leader's log: the records of these requests, as far as they are not in it and it takes them.

    Answered with `Appended` or the error of each partition. `writes` is called with partitions before anything of them
    is written. An error of the step itself leaves open whether the commit has landed.
    """

    leader: int
    requests: tuple[PartitionAppend, ...]
    writes: Callable[[Iterable[TopicIdPartition]], None]


class ReadLeaderships(NamedTuple):
    """A read of the metadata, then of the rows of the leaders, answered with `LeadershipsSeen`."""

    topic: str
    partitions: tuple[int, ...]


class LeadershipsSeen(NamedTuple):
    """Those of the partitions that there are, by number, and the topic's `min.insync.replicas`."""

    partitions: Mapping[int, Leadership]
    min_insync_replicas: int


class ReadLeaderLogs(NamedTuple):
    """A read of a leader's log up to its newest commit, answered with the log of each of these partitions, or with the
    error that keeps it from being told."""

    leader: int
    partitions: tuple[TopicIdPartition, ...]


class ReadReplicas(NamedTuple):
    """A read of what a broker says of its replicas, answered with its rows by partition."""

    broker: int


class Pause(NamedTuple):
    """Waits a poll interval, but not beyond the deadline of the monotonic clock, in seconds."""

    deadline: float


SendStep: TypeAlias = (
    ReadTopic | AppendToLeader | ReadLeaderships | ReadLeaderLogs | ReadReplicas | Pause
)  # fmt: skip

Round: TypeAlias = carry_out.Round[SendStep, Result]
