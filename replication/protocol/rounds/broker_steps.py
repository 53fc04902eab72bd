"""Steps: the vocabulary of rules and rounds. Each step is one read, one commit on one table, or one move in memory.

A rule returns a list of steps in their required order. A round yields them one by one and receives each answer. The
server carries them out on Delta tables, the simulation in memory, with a crash, a pause or another's commit between any
two. So the order of reads and writes is part of the rules, and is tested with them.

The steps of one round stand in its module; here are those that several rounds share, and the state of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import NamedTuple

from lakelog.replication.protocol.leadership import HostedPartition
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus


@dataclass(frozen=True)
class BrokerState:
    """A broker's knowledge of its replicas. `published` returns its rows as last written."""

    hosted: MutableMapping[TopicIdPartition, HostedPartition]
    published: Callable[[], Mapping[TopicIdPartition, ReplicaStatus]]
    offline: OfflineReplicas


class PublishReplicas(NamedTuple):
    """One commit on this broker's `replicas`: rows that claim what its logs and its memory have, and never more.

    `may_wait`: rows in which only a follower's HW has risen wait for the next commit, a heartbeat later at most. No
    reader waits for them: a new leader has its HW in memory. Kafka writes its checkpoint of HWs every 5 s. [HW-02]
    """

    why: str
    may_wait: bool = False


class OwnLogs(NamedTuple):
    """A broker's logs, and the faults in the files of its assigned partitions."""

    logs: Mapping[TopicIdPartition, PartitionLog]
    faults: Mapping[TopicIdPartition, str] = {}
    has_broken_files: bool = False
