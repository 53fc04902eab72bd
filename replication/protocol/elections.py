"""Elections: which replica leads a partition, and the ISR that it begins with.

An election returns the new registration, or None if no replica may lead; the caller names the error. Each election
begins a new leader epoch, even if it elects the same replica again, so the caller decides whether one is needed. The
ISR never becomes empty. Its last member stays even when it is dead, under `NO_LEADER`, because it is the only replica
known to have every committed record. `live` may name brokers outside the assignment.

Kafka: `Election`, `PartitionLeaderElectionAlgorithms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration


def new_partition(
    topic: str, topic_id: str, partition: int, replicas: Sequence[int], live: Collection[int]
) -> PartitionRegistration:
    """The first registration of a partition: the first live replica leads, all live ones are in sync, at epoch 0.

    Every log is empty, so every live replica is in sync. If no replica is live, there is neither leader nor ISR. Kafka
    keeps such a partition out of its metadata; here it waits there under `NO_LEADER`.

    Kafka: `ZkPartitionStateMachine.initializeLeaderAndIsrForPartitions`. [LE-03]
    """
    isr = tuple(replica for replica in replicas if replica in live)
    leader = isr[0] if isr else NO_LEADER
    return PartitionRegistration(topic, topic_id, partition, tuple(replicas), leader, leader_epoch=0, isr=isr)


def elect_offline(
    registration: PartitionRegistration, live: Collection[int], unclean_allowed: bool
) -> PartitionRegistration | None:
    """The first assigned replica that is live and in sync leads; the live members stay in the ISR.

    If none is, and `unclean_allowed`, the first live replica leads as the only member of the ISR. Committed records
    that it lacks are lost. `unclean_allowed`: `unclean.leader.election.enable`, or True for an unclean election by a
    request.

    Kafka: `PartitionLeaderElectionAlgorithms.offlinePartitionLeaderElection`. [LE-01] [LE-02]
    """
    alive = [replica for replica in registration.replicas if replica in live]
    in_sync = [replica for replica in alive if replica in registration.isr]
    may_be_clean = bool(in_sync)
    may_be_unclean = unclean_allowed and bool(alive)

    if may_be_clean:
        return _elected(registration, in_sync[0], (member for member in registration.isr if member in live))
    if may_be_unclean:
        return _elected(registration, alive[0], alive[:1])
    return None


def elect_reassigned(
    registration: PartitionRegistration, target: Sequence[int], live: Collection[int]
) -> PartitionRegistration | None:
    """The first replica of `target` that is live and in sync leads; the ISR stays.

    Dead members stay in the ISR too. The controller removes them when it handles the failure of their broker, or the
    new leader does.

    Kafka: `PartitionLeaderElectionAlgorithms.reassignPartitionLeaderElection`. [LE-05]
    """
    leader = _first_in_sync(registration, target, live)
    return None if leader is None else _elected(registration, leader, registration.isr)


def elect_preferred(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """The preferred leader, which is the first assigned replica, leads if it is live and in sync; the ISR stays.

    Kafka: `PartitionLeaderElectionAlgorithms.preferredReplicaPartitionLeaderElection`. [LE-05]
    """
    return elect_reassigned(registration, registration.replicas[:1], live)


def elect_controlled_shutdown(
    registration: PartitionRegistration, live: Collection[int], shutting_down: Collection[int]
) -> PartitionRegistration | None:
    """The first assigned replica that is in sync, live and not shutting down leads; those shutting down leave the ISR.

    The new leader stays in the ISR, so the ISR cannot become empty. `live` may include brokers that are shutting down.

    Kafka: `PartitionLeaderElectionAlgorithms.controlledShutdownPartitionLeaderElection`. [LE-04]
    """
    staying = [broker for broker in live if broker not in shutting_down]
    leader = _first_in_sync(registration, registration.replicas, staying)
    if leader is None:
        return None
    return _elected(registration, leader, (member for member in registration.isr if member not in shutting_down))


def is_unclean(
    before: PartitionRegistration, after: PartitionRegistration, without_log: Collection[int] = ()
) -> bool:  # fmt: skip
    """Whether the leader of `after` was outside the ISR of `before`, so that committed records may be lost.

    `without_log`: members of that ISR that have lost the log with which they were in sync. They count as outside.

    Kafka: `ControllerStats.uncleanLeaderElectionRate`. [LE-02]
    """
    return after.leader not in (NO_LEADER, LEADER_DURING_DELETE, *(set(before.isr) - set(without_log)))


def replica_offline(registration: PartitionRegistration, broker: int) -> PartitionRegistration:
    """An offline replica stops leading, and leaves the ISR unless it is the last member.

    Returns the same registration if neither applies, so that the caller writes nothing.

    Kafka: `ZkReplicaStateMachine.removeReplicasFromIsr`. [RS-03]
    """
    led = registration.leader == broker
    leaves_isr = broker in registration.isr and len(registration.isr) > 1

    if not led and not leaves_isr:
        return registration
    leader = NO_LEADER if led else registration.leader
    isr = tuple(member for member in registration.isr if member != broker) if leaves_isr else registration.isr
    return with_leader(registration, leader, isr)


def with_replicas(
    registration: PartitionRegistration, replicas: Sequence[int], live: Collection[int]
) -> PartitionRegistration | None:
    """Assigns `replicas`. The leader stays if it is one of them, else the first that is live and in sync leads.

    Other replicas leave the ISR; new ones join once they have caught up. None if none of `replicas` may lead; then the
    assignment must not change. A leader that stays may be dead; the failure of its broker is handled elsewhere.

    Kafka: `KafkaController.updateLeaderEpochAndSendRequest`, `moveReassignedPartitionLeaderIfRequired`. [RA-02] [RA-03]
    """
    leader_stays = registration.leader in replicas
    leader = registration.leader if leader_stays else _first_in_sync(registration, replicas, live)

    if leader is None:
        return None
    assigned = replace(registration, replicas=tuple(replicas))
    lead = with_leader if leader_stays else _elected
    return lead(assigned, leader, (member for member in registration.isr if member in replicas))


def with_leader(registration: PartitionRegistration, leader: int, isr: Iterable[int]) -> PartitionRegistration:
    """The registration with this leader and ISR, with both epochs raised by one even if neither has changed.

    The leader epoch fences everybody who still acts under the old one. The partition epoch fences ISR changes that were
    decided before. Members of the ISR keep their broker epochs. The committing controller sets the controller epoch.

    Kafka: `LeaderAndIsr.newLeaderAndIsr`. [LE-06]
    """
    members = tuple(isr)
    return replace(
        registration,
        leader=leader,
        isr=members,
        isr_epochs={member: epoch for member, epoch in registration.isr_epochs.items() if member in members},
        leader_epoch=registration.leader_epoch + 1,
        partition_epoch=registration.partition_epoch + 1,
    )


def _elected(registration: PartitionRegistration, leader: int, isr: Iterable[int]) -> PartitionRegistration:
    """`with_leader` for a new election: drops the leader's broker epoch.

    The committing controller sets it to the currently registered one. A process that registers later does not lead
    under this epoch, even if it is the same broker: KIP-380.
    """
    after = with_leader(registration, leader, isr)
    return replace(after, isr_epochs={m: epoch for m, epoch in after.isr_epochs.items() if m != leader})


def _first_in_sync(registration: PartitionRegistration, candidates: Iterable[int], live: Collection[int]) -> int | None:
    """The first candidate that is live and in the ISR."""
    return next((replica for replica in candidates if replica in live and replica in registration.isr), None)
