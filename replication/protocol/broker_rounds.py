"""What the rounds of a broker have in common: what it knows in memory, and the decisions that they ask for.

A round touches nothing. It yields each read and each commit, and is sent the answer or thrown the error: a broker gets
them from its tables, the simulation from tables that lose answers. Between two of them everybody else may act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TypeAlias

from replication.protocol import become_leader_or_follower, leadership
from replication.protocol.isr import Outcome
from replication.protocol.leadership import HostedPartition, Surroundings
from replication.protocol.offline_replicas import OfflineReplicas
from replication.protocol.partition_log import PartitionLog
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.steps import Step

Registrations: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]
Logs: TypeAlias = Mapping[TopicIdPartition, PartitionLog]


@dataclass(frozen=True)
class BrokerRules:
    """The decisions of rounds, each by the name of the function that makes it."""

    given_to: Callable[[int, int, Registrations], Registrations] = become_leader_or_follower.given_to
    become_leader_or_follower: Callable[[int, Registrations, Registrations, Logs], list[Step]] = (
        become_leader_or_follower.become_leader_or_follower
    )
    follow_registration: Callable[[HostedPartition, PartitionRegistration], HostedPartition] = (
        leadership.follow_registration
    )
    attend: Callable[[HostedPartition, Surroundings], HostedPartition] = leadership.attend
    settle_isr_change: Callable[[HostedPartition, Outcome, PartitionRegistration | None], HostedPartition] = (
        leadership.settle_isr_change
    )
    raise_high_watermark: Callable[[HostedPartition, Surroundings], HostedPartition] = leadership.raise_high_watermark


RULES = BrokerRules()


@dataclass(frozen=True)
class Memory:
    """What a broker knows of its replicas. `told` answers with its rows, as last written."""

    hosted: MutableMapping[TopicIdPartition, HostedPartition]
    told: Callable[[], Mapping[TopicIdPartition, Replica]]
    offline: OfflineReplicas
