"""Reassignment: moves a partition to other brokers. New replicas catch up first; old ones leave last.

AR is the assignment: all replicas of a partition. The progress is stored in the partition registration, so any later
controller can continue.

Kafka: `ReplicaAssignment`, `KafkaController.onPartitionReassignment`. KIP-455.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lakelog.replication.protocol.elections import with_leader, with_replicas
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration


def is_reassigning(registration: PartitionRegistration) -> bool:
    """Whether a reassignment is under way."""
    return bool(registration.adding_replicas or registration.removing_replicas)


def target_replicas(registration: PartitionRegistration) -> tuple[int, ...]:
    """The assignment after the reassignment; the current one if none is under way.

    Kafka: `ReplicaAssignment.targetReplicas`.
    """
    return tuple(broker for broker in registration.replicas if broker not in registration.removing_replicas)


def original_replicas(registration: PartitionRegistration) -> tuple[int, ...]:
    """The assignment before the reassignment. Replicas in both assignments are in the order of the target.

    Kafka: `ReplicaAssignment.originReplicas`.
    """
    return tuple(broker for broker in registration.replicas if broker not in registration.adding_replicas)


def begin_reassignment(registration: PartitionRegistration, target: Sequence[int]) -> PartitionRegistration:
    """Sets AR to the target, followed by the replicas to remove. Leader and ISR stay; the caller raises the epochs.

    A running reassignment is replaced: the new one starts from the original assignment. Replicas that only the running
    one added are no longer in AR, but may be in the ISR or lead: see `replace_reassignment`.

    Kafka: `ReplicaAssignment.reassignTo`. KIP-455. [RA-02]
    """
    original = original_replicas(registration)
    removing = tuple(broker for broker in original if broker not in target)
    return replace(
        registration,
        replicas=(*target, *removing),
        adding_replicas=tuple(broker for broker in target if broker not in original),
        removing_replicas=removing,
    )


def replace_reassignment(
    registration: PartitionRegistration, target: Sequence[int], live: Collection[int]
) -> PartitionRegistration | None:
    """Replaces a running reassignment by one to `target`. Replicas that only the running one added leave.

    None if such a replica leads, or the ISR has only such replicas, and no original or target replica may lead instead.
    A partition without a leader may continue without one.

    Kafka: `KafkaController.updateCurrentReassignment`. KIP-455. [RA-01]
    """
    moving = begin_reassignment(registration, target)
    led = with_replicas(moving, moving.replicas, live)
    isr = tuple(broker for broker in registration.isr if broker in moving.replicas)
    may_wait = registration.leader == NO_LEADER and bool(isr) == bool(registration.isr)
    return with_leader(moving, NO_LEADER, isr) if led is None and may_wait else led


def may_complete(registration: PartitionRegistration) -> bool:
    """Whether every target replica is in the ISR. [RA-03]"""
    return set(target_replicas(registration)) <= set(registration.isr)


def complete_reassignment(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """Sets AR to the target. Removed replicas leave the ISR and stop leading. None while no target replica may lead.

    A dead leader is replaced by a live one, even if it is in the target. [RA-03, LE-05]
    """
    return _settled(registration, target_replicas(registration), live)


def cancel_reassignment(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """Sets AR to the original assignment. None if none of its replicas may lead now."""
    return _settled(registration, original_replicas(registration), live)


def give_up_reassignment(registration: PartitionRegistration) -> PartitionRegistration:
    """Sets AR to the original assignment, without a leader: for a topic that is being deleted."""
    replicas = original_replicas(registration)
    settled = replace(registration, replicas=replicas, adding_replicas=(), removing_replicas=())
    return with_leader(settled, NO_LEADER, (broker for broker in registration.isr if broker in replicas))


def _settled(
    registration: PartitionRegistration, replicas: Sequence[int], live: Collection[int]
) -> PartitionRegistration | None:
    settled = replace(registration, adding_replicas=(), removing_replicas=())
    is_leader_live = registration.leader in live
    return with_replicas(settled if is_leader_live else replace(settled, leader=NO_LEADER), replicas, live)
