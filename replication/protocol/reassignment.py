"""Moves a partition to other brokers: those that are added catch up first, those that are removed go last.

How far it has come stands in the partition's row, so that any controller can go on with it.

Kafka: `ReplicaAssignment`, `KafkaController.onPartitionReassignment`. KIP-455.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lakelog.replication.protocol.leader_election import with_leader, with_replicas
from lakelog.replication.protocol.partition_registration import NO_LEADER, PartitionRegistration


def is_reassigning(registration: PartitionRegistration) -> bool:
    """Whether a reassignment is under way."""
    return bool(registration.adding_replicas or registration.removing_replicas)


def target_replicas(registration: PartitionRegistration) -> tuple[int, ...]:
    """What the assignment will be once the reassignment is done; as it is where none is under way.

    Kafka: `ReplicaAssignment.targetReplicas`.
    """
    return tuple(broker for broker in registration.replicas if broker not in registration.removing_replicas)


def original_replicas(registration: PartitionRegistration) -> tuple[int, ...]:
    """What the assignment was before. Those that both have stand in the order of the target.

    Kafka: `ReplicaAssignment.originReplicas`.
    """
    return tuple(broker for broker in registration.replicas if broker not in registration.adding_replicas)


def begin_reassignment(registration: PartitionRegistration, target: Sequence[int]) -> PartitionRegistration:
    """AR becomes the target and, behind it, who is to be removed. Leader and ISR stay. Epochs are for who writes it.

    A reassignment that is under way is replaced: what counts is the assignment before it. Who was added by it alone is
    in AR no more, and may still be in the ISR, or lead: see `replace_reassignment`.

    Kafka: `ReplicaAssignment.reassignTo`. KIP-455. [RA-02]
    """
    before = original_replicas(registration)
    removing = tuple(broker for broker in before if broker not in target)
    return replace(
        registration,
        replicas=(*target, *removing),
        adding_replicas=tuple(broker for broker in target if broker not in before),
        removing_replicas=removing,
    )


def replace_reassignment(
    registration: PartitionRegistration, target: Sequence[int], live: Collection[int]
) -> PartitionRegistration | None:
    """The reassignment to `target` in place of the one that is under way: who was added by that one alone leaves.

    None if such a replica leads, or is the whole ISR, and nobody of the original assignment or the target may lead
    instead. A partition that nobody leads may go on without a leader.

    Kafka: `KafkaController.updateCurrentReassignment`. KIP-455. [RA-01]
    """
    moving = begin_reassignment(registration, target)
    replaced = with_replicas(moving, moving.replicas, live)
    isr = tuple(broker for broker in registration.isr if broker in moving.replicas)
    may_wait = registration.leader == NO_LEADER and bool(isr) == bool(registration.isr)
    return with_leader(moving, NO_LEADER, isr) if replaced is None and may_wait else replaced


def may_complete(registration: PartitionRegistration) -> bool:
    """Whether all of the target are in the ISR. [RA-03]"""
    return set(target_replicas(registration)) <= set(registration.isr)


def complete_reassignment(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """AR is the target; who is removed leaves the ISR, and leads no more. None as long as nobody of it may lead.

    A leader that is in the target but dead makes place for one that lives. [RA-03, LE-05]
    """
    return _settled(registration, target_replicas(registration), live)


def cancel_reassignment(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """AR is what it was. None if nobody of it may lead now."""
    return _settled(registration, original_replicas(registration), live)


def give_up_reassignment(registration: PartitionRegistration) -> PartitionRegistration:
    """AR is what it was, and nobody leads: for what is to be deleted."""
    replicas = original_replicas(registration)
    settled = replace(registration, replicas=replicas, adding_replicas=(), removing_replicas=())
    return with_leader(settled, NO_LEADER, (broker for broker in registration.isr if broker in replicas))


def _settled(
    registration: PartitionRegistration, replicas: Sequence[int], live: Collection[int]
) -> PartitionRegistration | None:
    settled = replace(registration, adding_replicas=(), removing_replicas=())
    is_led = registration.leader in live
    return with_replicas(settled if is_led else replace(settled, leader=NO_LEADER), replicas, live)
