"""Who leads a partition, and who is in sync when it begins to.

An election answers with the new registration, or with None where nobody may lead; the caller knows which error that
is. It always begins a new leader epoch, also where the same replica is elected again: whether an election is needed is
for the caller to ask. An ISR never becomes empty: its last member stays in it even when it is dead, with `NO_LEADER`
for a leader, as it alone is known to hold every committed record. `live` may name brokers outside the assignment.

Kafka: `Election`, `PartitionLeaderElectionAlgorithms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER, PartitionRegistration


def new_partition(
    topic: str, topic_id: str, partition: int, replicas: Sequence[int], live: Collection[int]
) -> PartitionRegistration:
    """The first state of a partition: the first live replica leads, the live ones are the ISR, the epoch is 0.

    Every log is empty, so that everybody alive is in sync. Without a live replica there is no leader and no ISR:
    Kafka keeps such a partition out of its metadata, here it waits in it under `NO_LEADER`.

    Kafka: `ZkPartitionStateMachine.initializeLeaderAndIsrForPartitions`. [LE-03]
    """
    isr = tuple(replica for replica in replicas if replica in live)
    leader = isr[0] if isr else NO_LEADER
    return PartitionRegistration(topic, topic_id, partition, tuple(replicas), leader, leader_epoch=0, isr=isr)


def elect_offline(
    registration: PartitionRegistration, live: Collection[int], unclean_allowed: bool
) -> PartitionRegistration | None:
    """The first assigned replica that is live and in sync leads, the live members stay the ISR.

    Without one, and only if `unclean.leader.election.enable` allows it, the first live replica leads and is the ISR
    alone: what it lacks is lost, and nobody else is known to agree with it. An unclean election by hand is this one
    with `unclean_allowed=True`.

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
    """The first replica of `target` that is live and in sync leads; the ISR is kept.

    A dead member of the ISR is left in it: taking it out is for its broker's failure, or for the new leader.

    Kafka: `PartitionLeaderElectionAlgorithms.reassignPartitionLeaderElection`. [LE-05]
    """
    leader = _first_in_sync(registration, target, live)
    return None if leader is None else _elected(registration, leader, registration.isr)


def elect_preferred(registration: PartitionRegistration, live: Collection[int]) -> PartitionRegistration | None:
    """The preferred leader, which is the first assigned replica, leads if it is live and in sync; the ISR is kept.

    Kafka: `PartitionLeaderElectionAlgorithms.preferredReplicaPartitionLeaderElection`. [LE-05]
    """
    return elect_reassigned(registration, registration.replicas[:1], live)


def elect_controlled_shutdown(
    registration: PartitionRegistration, live: Collection[int], shutting_down: Collection[int]
) -> PartitionRegistration | None:
    """The first assigned replica that is in sync, live and not shutting down leads; who shuts down leaves the ISR.

    The new leader is in what is left of the ISR, so that it cannot become empty. Whether `live` counts the brokers
    that shut down makes no difference.

    Kafka: `PartitionLeaderElectionAlgorithms.controlledShutdownPartitionLeaderElection`. [LE-04]
    """
    staying = [broker for broker in live if broker not in shutting_down]
    leader = _first_in_sync(registration, registration.replicas, staying)
    if leader is None:
        return None
    return _elected(registration, leader, (member for member in registration.isr if member not in shutting_down))


def is_unclean(before: PartitionRegistration, after: PartitionRegistration) -> bool:
    """Whether the leader of `after` was not in sync before: committed records may be lost.

    Kafka: `ControllerStats.uncleanLeaderElectionRate`. [LE-02]
    """
    return after.leader not in (NO_LEADER, LEADER_DURING_DELETE, *before.isr)


def replica_offline(registration: PartitionRegistration, broker: int) -> PartitionRegistration:
    """A replica that is offline leaves the ISR, unless it is the last member, and leads no more.

    The same registration comes back if neither applies, so that nothing is written for it.

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
    """`replicas` are assigned: the leader stays if it is one of them, else the first live one in sync leads.

    Who is no longer assigned leaves the ISR, who is newly assigned has to catch up before it joins. None if nobody of
    `replicas` may lead: the assignment must not change then. A leader that stays is not asked whether it is live, as
    that is for its broker's failure.

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
    """The registration under another leader and ISR: both epochs go up by one, whatever has changed.

    The leader epoch fences whoever still acts for the leadership that is over, the partition epoch an ISR change that
    was decided before. The controller's own epoch is set by who commits.

    Members of the ISR keep their broker epochs.

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
    """The registration under a leader that is elected now: the process that leads is the one registered now.

    Which one that is, the controller adds that commits. One that registers later does not lead under this epoch, also
    where it is the same broker: KIP-380.
    """
    after = with_leader(registration, leader, isr)
    return replace(after, isr_epochs={m: epoch for m, epoch in after.isr_epochs.items() if m != leader})


def _first_in_sync(registration: PartitionRegistration, candidates: Iterable[int], live: Collection[int]) -> int | None:
    """The first candidate that is live and in the ISR."""
    return next((replica for replica in candidates if replica in live and replica in registration.isr), None)
