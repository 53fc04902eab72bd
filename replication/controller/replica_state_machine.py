"""Moves replicas between their states. A replica that goes offline leaves the ISR.

Kafka: `ReplicaStateMachine`. The table of valid moves is in `protocol/replica_states`. [RS-01, RS-02, RS-03]
"""

from __future__ import annotations

from collections.abc import Iterable

from lakelog.replication.controller.controller_context import PartitionAndReplica
from lakelog.replication.controller.decision import Decision
from lakelog.replication.protocol.elections import replica_offline
from lakelog.replication.protocol.replica_states import ReplicaState, is_valid

# The states of a removal after Offline, in order.
DELETION = (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL, ReplicaState.NON_EXISTENT)


def handle_state_changes(decision: Decision, replicas: Iterable[PartitionAndReplica], target: str) -> None:
    """Moves replicas to a state. It logs an invalid move and leaves it out.

    Brokers read in the metadata what Kafka sends them by LeaderAndIsr and StopReplica: they take up assigned replicas,
    and stop replicas that are not assigned or whose topic is being deleted. [RS-02, RS-03]

    Kafka: `ReplicaStateMachine.handleStateChanges`.
    """
    for replica in replicas:
        before = decision.replica_state(replica)
        is_leader = (
            target == ReplicaState.NEW and decision.registration(replica.topic_id_partition).leader == replica.broker_id
        )
        if is_leader or not is_valid(before, target):
            decision.refuse_move(decision.name_of(replica), before, target)
            continue
        if target == ReplicaState.OFFLINE:
            _leave_isr(decision, replica)
        decision.move_replica(replica, target)


def _leave_isr(decision: Decision, replica: PartitionAndReplica) -> None:
    registration = decision.registration(replica.topic_id_partition)
    after = replica_offline(registration, replica.broker_id)
    if after is not registration and not decision.is_left_alone(registration):
        decision.put(after)


def replicas_on(decision: Decision, brokers: Iterable[int]) -> list[PartitionAndReplica]:
    """All replicas that these brokers hold, in order.

    Kafka: `ControllerContext.replicasOnBrokers`.
    """
    wanted = sorted(set(brokers))
    return [
        PartitionAndReplica(partition, broker)
        for partition, registration in decision.context.partitions.items()
        for broker in wanted
        if broker in registration.replicas
    ]
