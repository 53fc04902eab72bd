"""Elections of preferred leaders, by hand or by the controller itself to restore the balance, and unclean ones by hand.

Kafka: `KafkaController.onReplicaElection`, `checkAndTriggerAutoLeaderRebalance`. [PE-01, AR-01, AR-02, LE-02]
"""

from __future__ import annotations

from collections import defaultdict

from lakelog.replication.controller.decision import Decision
from lakelog.replication.controller.partition_state_machine import Strategy, handle_state_changes
from lakelog.replication.errors import (
    ElectionNotNeededException,
    EligibleLeadersNotAvailableException,
    InvalidRequestException,
    PreferredLeaderNotAvailableException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.partition_states import PartitionState
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.replication.protocol.record_batch import TopicIdPartition

PREFERRED, UNCLEAN = "preferred", "unclean"
ELECTION_TYPES = (PREFERRED, UNCLEAN)


def elect(decision: Decision, partition: TopicIdPartition, election_type: str) -> str:
    """Elects a leader by hand, `preferred` or `unclean`. Returns the result as text.

    Raises UnknownTopicOrPartitionException if the topic is being deleted, ElectionNotNeededException if the preferred
    leader leads already (or, if unclean, any live broker), PreferredLeaderNotAvailableException if the preferred leader
    is dead or not in sync, and EligibleLeadersNotAvailableException if no replica is alive. [PE-01, LE-02]
    """
    registration = decision.registration(partition)
    name = registration.name
    if decision.is_being_deleted(registration):
        raise UnknownTopicOrPartitionException(f"{name}: the topic is being deleted")
    wanted = registration.replicas[0] if election_type == PREFERRED else registration.leader
    if registration.leader == wanted and wanted in decision.context.brokers:
        raise ElectionNotNeededException(f"{name}: broker {registration.leader} leads already")
    strategy = Strategy.PREFERRED if election_type == PREFERRED else Strategy.UNCLEAN
    if handle_state_changes(decision, [partition], PartitionState.ONLINE, strategy):
        raise _nobody(name, registration, election_type)
    return f"broker {decision.registration(partition).leader} leads"


def _nobody(
    name: str, registration: PartitionRegistration, election_type: str
) -> PreferredLeaderNotAvailableException | EligibleLeadersNotAvailableException:
    if election_type == PREFERRED:
        return PreferredLeaderNotAvailableException(
            f"{name}: broker {registration.replicas[0]} is not alive and in the ISR {list(registration.isr)}"
        )
    return EligibleLeadersNotAvailableException(f"{name}: none of brokers {list(registration.replicas)} is alive")


def rebalance_leaders(decision: Decision) -> None:
    """Elects the preferred leader where others lead more than `leader.imbalance.per.broker.percentage` of a broker's
    preferred partitions.

    It does nothing during a reassignment, and leaves out topics that are being deleted. [AR-02]
    """
    if any(is_reassigning(registration) for registration in decision.context.partitions.values()):
        return
    preferred: dict[int, list[PartitionRegistration]] = defaultdict(list)
    for registration in decision.context.partitions.values():
        if not decision.is_being_deleted(registration):
            preferred[registration.replicas[0]].append(registration)
    allowed = decision.context.config.leader_imbalance_per_broker_percentage
    for broker in sorted(preferred.keys() & decision.live):
        led_elsewhere = [r for r in preferred[broker] if r.leader != broker]
        if len(led_elsewhere) * 100 > allowed * len(preferred[broker]):
            due = [r.topic_id_partition for r in led_elsewhere if broker in r.isr]
            handle_state_changes(decision, due, PartitionState.ONLINE, Strategy.PREFERRED)


def check_type(election_type: str) -> str:
    """The type of an election. Raises InvalidRequestException if it is neither `preferred` nor `unclean`."""
    if election_type not in ELECTION_TYPES:
        raise InvalidRequestException(f"election type {election_type!r}: it must be {PREFERRED} or {UNCLEAN}")
    return election_type
