"""Logs the state changes of a broker: each one to Kafka's `state.change.logger`, and their numbers in one line of the
broker's own log. [BL-12]"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from lakelog.replication.protocol.isr import AlterIsrOutcome, IsrOutcomes
from lakelog.replication.protocol.partition_changes import partition_changes
from lakelog.replication.protocol.partition_log import Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition

logger = logging.getLogger(__name__)
state_changes = logging.getLogger("state.change.logger")


def log_roles(
    broker_id: int, roles: Mapping[TopicIdPartition, Role], metadata: Mapping[TopicIdPartition, PartitionRegistration]
) -> None:
    """Logs the roles that a commit has recorded, each with the controller epoch that gave it. [BL-12]"""
    counts = Counter(role.name for role in roles.values())
    if counts:
        numbers = ", ".join(f"{name} of {count}" for name, count in sorted(counts.items()))
        logger.info("broker %d: partitions with a new role: %d (%s)", broker_id, len(roles), numbers)
    for partition, role in roles.items():
        registration = metadata.get(partition)
        name = registration.name if registration else str(partition)
        state_changes.info(
            "broker %d: %s is %s under leader epoch %d (controller epoch %s, leader %s)",
            broker_id, name, role.name, role.leader_epoch,
            registration.controller_epoch if registration else "-", registration.leader if registration else "-",
        )  # fmt: skip


def log_isr_changes(
    broker_id: int, outcomes: IsrOutcomes, before: Mapping[TopicIdPartition, PartitionRegistration]
) -> None:
    """Logs the outcomes of a leader's ISR changes. `before` has the partitions as the leader knew them."""
    current = {p: registration for p, (_, registration) in outcomes.items() if registration is not None}
    changes = partition_changes(before, current)
    if changes:
        logger.info("broker %d: %s", broker_id, changes)
    for partition, (outcome, registration) in outcomes.items():
        _log_isr_change(broker_id, partition, outcome, registration)


def _log_isr_change(
    broker_id: int, partition: TopicIdPartition, outcome: AlterIsrOutcome, current: PartitionRegistration | None
) -> None:
    isr = current.isr if current else "gone"
    state_changes.info("broker %d: ISR of %s: %s, now %s", broker_id, partition, outcome.value, isr)


def log_offline(broker_id: int, before: Mapping[TopicIdPartition, str], now: Mapping[TopicIdPartition, str]) -> None:
    """Logs the replicas that have gone offline, each with its fault. [OL-01]"""
    for partition in now.keys() - before.keys():
        state_changes.error("broker %d: %s is offline: %s", broker_id, partition, now[partition])
