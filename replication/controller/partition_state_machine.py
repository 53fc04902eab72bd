"""Moves partitions between their states. A move to Online elects a leader.

Kafka: `PartitionStateMachine`. The table of valid moves is in `protocol/partition_states`, the elections are in
`protocol/elections`. [PS-01, PS-02]
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import replace

from lakelog.replication.controller.decision import Decision, state_changes
from lakelog.replication.protocol.elections import elect_controlled_shutdown, elect_offline, elect_preferred
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.partition_states import PartitionState, is_valid
from lakelog.replication.protocol.record_batch import TopicIdPartition


class Strategy(enum.Enum):
    """How the leader is chosen. Kafka: `PartitionLeaderElectionStrategy`."""

    OFFLINE = "offline partition"
    UNCLEAN = "unclean by hand"
    PREFERRED = "preferred replica"
    CONTROLLED_SHUTDOWN = "controlled shutdown"


def handle_state_changes(
    decision: Decision, partitions: Iterable[TopicIdPartition], target: str, strategy: Strategy = Strategy.OFFLINE
) -> list[TopicIdPartition]:
    """Moves partitions to a state, to Online by an election. Returns those that no replica may lead, which do not move.

    It logs an invalid move and leaves it out.

    Kafka: `PartitionStateMachine.handleStateChanges`. [PS-02]
    """
    failed = []
    for partition in partitions:
        registration, before = decision.registration(partition), decision.partition_state(partition)
        if not is_valid(before, target):
            decision.refuse_move(registration.name, before, target)
            continue
        if target == PartitionState.ONLINE:
            elected = elect(decision, registration, before, strategy)
            if elected is None:
                failed.append(partition)
                continue
            decision.put(elected)
        decision.move_partition(registration, target)
    return failed


def trigger_online_partition_state_change(decision: Decision) -> None:
    """Elects leaders for all New and Offline partitions, except those that wait for their deletion.

    Kafka: `PartitionStateMachine.triggerOnlinePartitionStateChange`. [PS-04, TD-05]
    """
    waiting = (PartitionState.NEW, PartitionState.OFFLINE)
    waits = (p for p in decision.context.partitions if decision.partition_state(p) in waiting)
    due = [p for p in waits if not decision.is_left_alone(decision.registration(p))]
    handle_state_changes(decision, due, PartitionState.ONLINE)


def elect(
    decision: Decision, registration: PartitionRegistration, state: str, strategy: Strategy
) -> PartitionRegistration | None:
    """The partition under its new leader; None if no replica may lead. [LE-01, LE-02, LE-03, LE-04, LE-05]"""
    context, live = decision.context, decision.live_for(registration.topic_id_partition)
    if state == PartitionState.NEW:
        return _first_leader(registration, live)
    match strategy:
        case Strategy.OFFLINE:
            return _elect_offline(decision, registration, _unclean_allowed(decision, registration))
        case Strategy.UNCLEAN:
            return _elect_offline(decision, registration, unclean_allowed=True)
        case Strategy.PREFERRED:
            return elect_preferred(registration, live)
        case Strategy.CONTROLLED_SHUTDOWN:
            return elect_controlled_shutdown(registration, live, context.shutting_down_brokers)


def _elect_offline(
    decision: Decision, registration: PartitionRegistration, unclean_allowed: bool
) -> PartitionRegistration | None:
    """An ISR member that has lost its log may lead only uncleanly, and only if no other replica is alive. KIP-966.

    Until then it stays in the ISR, so that no replica without the committed records is elected cleanly. [LE-02, LI-04]
    """
    partition = registration.topic_id_partition
    elected = elect_offline(registration, decision.live_for(partition), unclean_allowed)
    if elected is not None or not unclean_allowed:
        return elected
    nobody_in_sync = replace(registration, isr=(), isr_epochs={})
    return elect_offline(nobody_in_sync, decision.whole_for(partition), unclean_allowed)


def _first_leader(registration: PartitionRegistration, live: Iterable[int]) -> PartitionRegistration | None:
    """The first leader of a partition. All logs are empty, so each live replica is in sync. [LE-03]"""
    alive = [replica for replica in registration.replicas if replica in set(live)]
    if not alive:
        return None
    if registration.isr:
        return registration
    return replace(registration, leader=alive[0], isr=tuple(alive))  # the first epoch: it does not rise


def _unclean_allowed(decision: Decision, registration: PartitionRegistration) -> bool:
    """The topic's `unclean.leader.election.enable`. Invalid settings are left out and block no other topic. [LE-02]"""
    topic = decision.topic(registration.topic)
    found, wrong = decision.context.config.topic_as_far_as_known(topic.configs if topic else {})
    if wrong is not None:
        state_changes.error("topic %s: invalid settings are left out: %s", registration.topic, wrong)
    return found.unclean_leader_election_enable
