"""Carries out the steps of sends on the cluster's tables: reads metadata and replica rows, appends to leaders' logs.

Kafka: `Sender.sendProduceRequests`, `ReplicaManager.appendRecords`. [AP-06, AP-07]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from lakelog.replication.clients.record_set import RecordSet
from lakelog.replication.clients.topic_view import TopicView, pause
from lakelog.replication.errors import LakelogException, error_or
from lakelog.replication.protocol.append import ALL, Appended
from lakelog.replication.protocol.partition_log import PartitionLog
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.carry_out import Handler, Result, carry_out
from lakelog.replication.protocol.rounds.send_round import (
    AppendToLeader,
    AppendToLeaders,
    LeadershipsSeen,
    Pause,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    ReadTopic,
    Round,
    SendOptions,
    SendStep,
    TakeIdentity,
    TopicSeen,
)
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.log_append import Positions, append
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment

Outcomes: TypeAlias = Mapping[TopicIdPartition, Appended | LakelogException]


class SendExecutor:
    """Carries out the steps of one round: the records, the options and the topic are those of one commit.

    `take_identity`: takes a new id or epoch for the producer, until a deadline on the monotonic clock, in seconds.
    """

    def __init__(
        self, view: TopicView, topic: str, given: RecordSet, options: SendOptions,
        take_identity: Callable[[float], ProducerIdAndEpoch],
    ) -> None:  # fmt: skip
        self._view = view
        self._topic = topic
        self._given = given
        self._options = options
        self._handlers: dict[type, Handler] = {
            ReadTopic: lambda step: TopicSeen(view.partitions(step.topic, RECENT_SECONDS), self._min_insync_replicas()),
            TakeIdentity: lambda step: take_identity(step.deadline),
            AppendToLeaders: self._append_to_all,
            ReadLeaderships: lambda step: LeadershipsSeen(
                view.leaderships(step.topic, step.partitions, RECENT_SECONDS), self._min_insync_replicas()
            ),
            ReadLeaderLogs: self._logs,
            ReadReplicas: lambda step: view.replicas(step.broker, RECENT_SECONDS),
            Pause: lambda step: pause(view.cluster.config.lakelog_poll_interval_ms, step.deadline),
        }

    def run(self, work: Round[Result]) -> Result:
        """Carries out a round and returns its result."""
        return carry_out(work, self._handlers)

    def execute(self, step: SendStep) -> Any:
        """Carries out one step and returns its answer."""
        return self._handlers[type(step)](step)

    def _min_insync_replicas(self) -> int:
        """The topic's. Without acks=all nothing goes by it, so it need not be understood."""
        if self._options.acks == ALL:
            return self._view.min_insync_replicas(self._topic)
        return self._view.config(self._topic).min_insync_replicas

    def _append(self, log: ReplicaLog, step: AppendToLeader) -> Outcomes:
        def write(positions: Positions) -> Sequence[Segment]:
            step.note_written(positions)
            return self._given.write(log.root, step.leader, step.requests, positions)

        return append(log, step.requests, write, self._given.digests, self._options.who, self._options.deadline)

    def _append_to_all(self, step: AppendToLeaders) -> list[Outcomes | LakelogException]:
        """Appends to the logs of several leaders, with a thread for each. This thread opens the logs first."""
        opened = [(error_or(self._view.log, each.leader), each) for each in step.appends]

        def append_to(given: tuple[ReplicaLog | LakelogException, AppendToLeader]) -> Outcomes | LakelogException:
            log, each = given
            return log if isinstance(log, LakelogException) else error_or(self._append, log, each)

        return in_threads(append_to, opened, len(opened))

    def _logs(self, step: ReadLeaderLogs) -> dict[TopicIdPartition, PartitionLog | LakelogException]:
        state = self._view.log(step.leader).refresh(RECENT_SECONDS)
        found: dict[TopicIdPartition, PartitionLog | LakelogException] = {}
        for partition in step.partitions:
            try:
                found[partition] = state.partition(partition)
            except LakelogException as error:
                found[partition] = error
        return found
