"""The log of a broker's state changes, under the name that Kafka gives to it. [BL-12]"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lakelog.replication.protocol.isr import AlterIsrOutcome
from lakelog.replication.protocol.partition_log import Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition

state_changes = logging.getLogger("state.change.logger")


def log_roles(
    broker_id: int, roles: Mapping[TopicIdPartition, Role], metadata: Mapping[TopicIdPartition, PartitionRegistration]
) -> None:
    """Says which roles have been recorded, and by which controller's decision. [BL-12]"""
    for partition, role in roles.items():
        registration = metadata.get(partition)
        name = registration.name if registration else str(partition)
        state_changes.info(
            "broker %d: %s is %s under leader epoch %d (controller epoch %s, leader %s)",
            broker_id, name, role.name, role.leader_epoch,
            registration.controller_epoch if registration else "-", registration.leader if registration else "-",
        )  # fmt: skip


def log_isr_change(
    broker_id: int, partition: TopicIdPartition, outcome: AlterIsrOutcome, current: PartitionRegistration | None
) -> None:
    """Says what has become of a leader's change of an ISR."""
    isr = current.isr if current else "gone"
    state_changes.info("broker %d: ISR of %s: %s, now %s", broker_id, partition, outcome.value, isr)


def log_offline(broker_id: int, before: Mapping[TopicIdPartition, str], now: Mapping[TopicIdPartition, str]) -> None:
    """Says which replicas have gone offline, and why. [OL-01]"""
    for partition in now.keys() - before.keys():
        state_changes.error("broker %d: %s is offline: %s", broker_id, partition, now[partition])
