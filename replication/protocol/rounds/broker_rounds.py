"""The memory and the rules that a broker's rounds share. See `rounds`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol import become_leader_or_follower, follow, leadership
from lakelog.replication.protocol.append_plan import AppendPlan, FetchedBatch, plan_appends
from lakelog.replication.protocol.become_leader_or_follower import Logs
from lakelog.replication.protocol.fencing import check_leader_row
from lakelog.replication.protocol.isr import AlterIsrOutcome
from lakelog.replication.protocol.leadership import HostedPartition, LeaderInputs
from lakelog.replication.protocol.offline_replicas import OfflineReplicas
from lakelog.replication.protocol.partition_registration import PartitionRegistration, Registrations
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.protocol.rounds.broker_steps import Step
from lakelog.replication.protocol.rounds.fetch_steps import FetchStep


@dataclass(frozen=True)
class BrokerRules:
    """The rules that a broker's rounds call, as fields, so that the simulation can replace one."""

    given_to: Callable[[int, int, Registrations], Registrations] = become_leader_or_follower.given_to
    become_leader_or_follower: Callable[[int, Registrations, Registrations, Logs], list[Step]] = (
        become_leader_or_follower.become_leader_or_follower
    )
    follow_registration: Callable[[HostedPartition, PartitionRegistration], HostedPartition] = (
        leadership.follow_registration
    )
    observe_followers: Callable[[HostedPartition, LeaderInputs], HostedPartition] = leadership.observe_followers
    settle_isr_change: Callable[[HostedPartition, AlterIsrOutcome, PartitionRegistration | None], HostedPartition] = (
        leadership.settle_isr_change
    )
    raise_high_watermark: Callable[[HostedPartition, LeaderInputs], HostedPartition] = leadership.raise_high_watermark
    check_leader_row: Callable[[ReplicaStatus | None, TopicIdPartition, int], LakelogException | None] = (
        check_leader_row
    )
    maybe_truncate: Callable[..., list[FetchStep]] = follow.maybe_truncate
    may_append: Callable[[FetchedBatch, ReplicaStatus, int], bool] = follow.may_append
    plan_appends: Callable[..., AppendPlan] = plan_appends
    append_fetched: Callable[[AppendPlan, Mapping[TopicIdPartition, ReplicaStatus], Logs], list[FetchStep]] = (
        follow.append_fetched
    )


RULES = BrokerRules()


@dataclass(frozen=True)
class BrokerState:
    """A broker's knowledge of its replicas. `published` returns its rows as last written."""

    hosted: MutableMapping[TopicIdPartition, HostedPartition]
    published: Callable[[], Mapping[TopicIdPartition, ReplicaStatus]]
    offline: OfflineReplicas
