"""The rules by which a lost cluster root is made again from the roots of its brokers: which replica leads, under which
epoch, what may be lost, and why.

An acknowledged record (acks=all) is on at least `min.insync.replicas` replicas. So as long as fewer roots than that are
missing, one of the others has it. The rest is to choose the right log where logs differ.

Neither the longest log nor the one with the newest last batch is always right, even if all elections were clean. A
leader may have appended a batch under epoch 6 that nobody else has, and a later leader, under epoch 7, may have
committed older records of epoch 5 at the same offsets without appending any of its own (Raft's paper, figure 8). So
where logs differ, the epoch that a replica has *confirmed* counts: the highest leader epoch under which its log was
known to be a beginning of the leader's log. A record that was committed under epoch 7 is on replicas that have
confirmed 7, and no log that has confirmed 7 or a later epoch has another record at its offset. Where logs do not
differ, the longest one has all that the others have, and it leads.

Kafka: KIP-966 (unclean recovery by the longest log), KIP-101.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.partition_log import FENCED, LEADER, NO_REPAIR, NO_ROLE, STOPPED, PartitionLog
from lakelog.replication.protocol.partition_registration import (
    LEADER_DURING_DELETE,
    NO_EPOCH,
    NO_LEADER,
    PartitionRegistration,
)
from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch
from lakelog.replication.protocol.reassignment import original_replicas, target_replicas
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus

AHEAD = 1000  # how far new epochs are above those that were seen: a root that is missing may have newer ones


_FIRST_EPOCH = 1  # of a broker that registers for the first time


class FoundReplica(NamedTuple):
    """A replica in the root of a broker: its log, the last row that the broker has published of it, and why the log
    cannot be used, None if it can. `log_epoch`: the broker epoch since which the broker has its log, None if that is
    not known."""

    broker_id: int
    log: PartitionLog
    row: ReplicaStatus | None = None
    fault: str | None = None
    log_epoch: int | None = None

    @property
    def is_there(self) -> bool:
        """Whether the replica has a log that can be used: neither broken, nor lost, nor deleted."""
        return self.fault is None and self.log.role != NO_ROLE and self.log.role.kind != STOPPED

    @property
    def never_was(self) -> bool:
        """Whether the broker has had no such replica yet: nothing tells of one, and its log is the first that it
        has."""
        is_first = self.log_epoch is not None and self.log_epoch <= _FIRST_EPOCH
        return is_first and self.log.role == NO_ROLE and self.fault is None and self.row is None

    @property
    def has_lost_end(self) -> bool:
        """Whether the row tells of a later role than the log has, or of records that it lacks, as after a power cut. A
        broker publishes a row after the commits that it tells of, and says Truncating before it truncates."""
        row, log = self.row, self.log
        if row is None:
            return False
        if row.leader_epoch != log.role.leader_epoch or row.state != FollowerState.FETCHING:
            return row.leader_epoch > log.role.leader_epoch
        return row.log_end_offset >= log.first_offset and log.chain_at(row.log_end_offset) != row.chain

    @property
    def confirmed(self) -> int:
        """The highest leader epoch of which it is known that the log was a beginning of its leader's log: that of the
        last batch, that of a role as leader, or that of a row that says Fetching, as a follower says Truncating until
        it has compared its log with its leader's."""
        role, row = self.log.role.before_stray, self.row
        led = role.leader_epoch if role.kind in (LEADER, FENCED) else NO_EPOCH
        told = row.leader_epoch if row is not None and row.state == FollowerState.FETCHING else NO_EPOCH
        last = self.log.batches[-1].header.leader_epoch if self.log.batches else NO_EPOCH
        return max(led, told, last)

    @property
    def possibly_confirmed(self) -> int:
        """The highest leader epoch that it may have confirmed. A row that says Truncating hides what was before."""
        return max(self.confirmed, self.log.role.leader_epoch - 1)

    @property
    def committed(self) -> int:
        """An offset below which all records were committed."""
        return 0 if self.row is None else min(self.row.high_watermark, self.log.log_end_offset)


class Fork(NamedTuple):
    """An offset from which on logs differ, the brokers whose logs go on in the one that leads, and the others.
    `is_proven`: whether no record of the others can be a committed one."""

    offset: int
    kept: tuple[int, ...]
    left: tuple[int, ...]
    is_proven: bool


class LeaderChoice(NamedTuple):
    """The replica that leads, the brokers whose logs are equal to its log, and where logs differ."""

    leader: int
    in_sync: tuple[int, ...]
    log_end_offset: int
    forks: tuple[Fork, ...] = ()


def fork_offset(one: PartitionLog, other: PartitionLog) -> int | None:
    """The offset from which on two logs differ; None if one of them is a beginning of the other. A log that ends before
    the other one begins says nothing about it."""
    shorter, longer = sorted((one, other), key=lambda log: log.log_end_offset)
    at_end = longer.chain_at(shorter.log_end_offset)
    if at_end is None or at_end == shorter.log_end.chain:
        return None
    first, last = 0, len(shorter.batches)  # the batches that both have come first
    while first < last:
        middle = (first + last) // 2
        header = shorter.batches[middle].header
        if longer.chain_at(header.next_offset) in (None, header.chain):
            first = middle + 1
        else:
            last = middle
    return shorter.batches[first].base_offset if first < len(shorter.batches) else shorter.log_end_offset


def choose(replicas: Sequence[FoundReplica]) -> LeaderChoice | None:
    """Which of these replicas leads; the order is that of preference among equals. None if none has a usable log.

    From the first offset at which logs differ, the branch with the highest high watermark above it goes on, else that
    with the highest confirmed epoch. The longest log that is left leads, of equals one without a note of wrong records.
    """
    left, forks = [replica for replica in replicas if replica.is_there], list[Fork]()
    while (offset := _first_fork(left)) is not None:
        branches = _branches(left, offset)
        best = max(branches, key=lambda branch: _evidence(branch, offset))
        others = [replica for branch in branches if branch is not best for replica in branch]
        forks.append(Fork(offset, _ids(best), _ids(others), _is_proven(best, branches, offset)))
        gone = {replica.broker_id for replica in others}
        left = [replica for replica in left if replica.broker_id not in gone]
    if not left:
        return None
    leader = max(left, key=lambda replica: (replica.log.log_end_offset, replica.log.repair_from == NO_REPAIR))
    equal = [replica.broker_id for replica in left if replica.log.log_end == leader.log.log_end]
    in_sync = (leader.broker_id, *(broker for broker in equal if broker != leader.broker_id))
    return LeaderChoice(leader.broker_id, in_sync, leader.log.log_end_offset, tuple(forks))


def _first_fork(replicas: Sequence[FoundReplica]) -> int | None:
    found = (fork_offset(a.log, b.log) for place, a in enumerate(replicas) for b in replicas[:place])
    return min((offset for offset in found if offset is not None), default=None)


def _branches(replicas: Sequence[FoundReplica], offset: int) -> list[list[FoundReplica]]:
    """The replicas that have a batch at this offset, by that batch. Those that end before it belong to all branches."""
    found: dict[str, list[FoundReplica]] = {}
    for replica in replicas:
        placed = replica.log.batches_between(offset, offset + 1)
        if placed:
            found.setdefault(placed[0].header.chain, []).append(replica)
    return list(found.values())


def _evidence(branch: Sequence[FoundReplica], offset: int) -> tuple[bool, int, int, bool]:
    """The evidence for a branch, the strongest first: a committed record after the fork, the highest confirmed epoch,
    its length, a replica without a note of wrong records."""
    return (
        any(replica.committed > offset for replica in branch),
        max(replica.confirmed for replica in branch),
        max(replica.log.log_end_offset for replica in branch),
        any(replica.log.repair_from == NO_REPAIR for replica in branch),
    )


def _is_proven(best: Sequence[FoundReplica], branches: Sequence[Sequence[FoundReplica]], offset: int) -> bool:
    others = [replica for branch in branches if branch is not best for replica in branch]
    if any(replica.committed > offset for replica in others):
        return False  # committed records were lost before: an unclean election, or a file from a backup
    is_committed = any(replica.committed > offset for replica in best)
    return is_committed or max(r.confirmed for r in best) > max(r.possibly_confirmed for r in others)


def _ids(replicas: Iterable[FoundReplica]) -> tuple[int, ...]:
    return tuple(replica.broker_id for replica in replicas)


class RecoveredPartition(NamedTuple):
    """A partition as it is in the new cluster root. `absent`: assigned brokers whose logs prove nothing, and why.
    `loss`: what may be lost, None if nothing can be. `why`: the reason for either, as a sentence."""

    registration: PartitionRegistration
    choice: LeaderChoice | None
    absent: Mapping[int, str]
    loss: str | None
    why: str


def recover_partition(
    known: PartitionRegistration, found: Mapping[int, FoundReplica], min_isr: int, broker_epochs: Mapping[int, int],
    controller_epoch: int, is_deleting: bool = False, has_all_replicas: bool = True,
) -> RecoveredPartition:  # fmt: skip
    """The registration of a partition in the new cluster root, without a leader: the controller elects the member of
    the ISR that starts first. The ISR has the brokers whose logs are equal to the longest one.

    `known`: the last registration that somebody has seen. `found`: the replicas in the roots that were read, by broker.
    `min_isr`: see `least_min_isr`. `broker_epochs`: those that the brokers' registrations get. `is_deleting`:
    whether its topic is being deleted. `has_all_replicas`: whether `known` names all replicas for certain.
    """
    choice = choose([found[broker] for broker in known.replicas if broker in found])
    absent = absent_replicas(known, found)
    isr = known.isr if choice is None else choice.in_sync
    registration = replace(
        known,
        leader=LEADER_DURING_DELETE if known.leader == LEADER_DURING_DELETE else NO_LEADER,
        leader_epoch=next_epoch([known.leader_epoch, *(_newest_epoch(replica) for replica in found.values())]),
        partition_epoch=next_epoch([known.partition_epoch]),
        controller_epoch=controller_epoch,
        isr=isr,
        isr_epochs={broker: broker_epochs[broker] for broker in isr if broker in broker_epochs},
    )
    if is_deleting or known.leader == LEADER_DURING_DELETE:
        return RecoveredPartition(registration, choice, absent, None, "its topic is being deleted")
    never_began = all(broker in found and found[broker].never_was for broker in known.replicas)
    if has_all_replicas and known.leader_epoch == 0 and never_began:
        return RecoveredPartition(registration, choice, absent, None, "no broker has begun its log")
    loss, why = what_may_be_lost(known, found, absent, min_isr, choice)
    if loss is None and choice is not None and not has_all_replicas:
        loss = f"records from offset {choice.log_end_offset} on"
        why = "no copy has its last metadata, so brokers whose roots are missing may have had replicas of it, too"
    return RecoveredPartition(registration, choice, absent, loss, why)


def absent_replicas(known: PartitionRegistration, found: Mapping[int, FoundReplica]) -> dict[int, str]:
    """The assigned brokers whose logs do not count for what was acknowledged, and why.

    A log counts if it still has what it once had: if it is the first one of its broker, or was lost before the broker
    joined the ISR that is known. Where nobody has noted that, as in older versions, members of the ISR count that have
    all that is known to be committed.
    """
    committed = max((replica.committed for replica in found.values() if replica.is_there), default=0)

    def why(broker: int) -> str:
        replica = found.get(broker)
        if replica is None:
            return "its root is missing"
        if not replica.is_there:
            return replica.fault or "its log has no such replica: it was lost, deleted or never there"
        if replica.has_lost_end:
            return "its log has lost its end, as after a power cut"
        if replica.log_epoch is None:
            is_in_sync = broker in known.isr and replica.log.log_end_offset >= committed
            return "" if is_in_sync else "it was out of sync"
        is_whole = replica.log_epoch <= _FIRST_EPOCH
        is_whole |= broker in known.isr and known.isr_epoch(broker) >= replica.log_epoch
        return "" if is_whole else "it was out of sync, and its log was lost before or is from before the last recovery"

    return {broker: reason for broker in known.replicas if (reason := why(broker))}


def next_epoch(seen: Iterable[int]) -> int:
    """An epoch above all that were seen, and above those that nobody has seen."""
    return max(0, *seen, 0) + AHEAD


def _newest_epoch(replica: FoundReplica) -> int:
    lineage = [entry.leader_epoch for entry in replica.log.lineage]
    row = replica.row.leader_epoch if replica.row is not None else NO_EPOCH
    return max((replica.log.role.leader_epoch, row, *lineage))


def told_as_committed(replicas: Iterable[FoundReplica]) -> int:
    """The offset up to which records were committed by the rows of these replicas, also if their logs lack them."""
    return max((replica.row.high_watermark for replica in replicas if replica.row is not None), default=0)


def what_may_be_lost(
    known: PartitionRegistration, found: Mapping[int, FoundReplica], absent: Mapping[int, str], min_isr: int,
    choice: LeaderChoice | None,
) -> tuple[str | None, str]:  # fmt: skip
    """The records of a partition that may be lost, None if none can be, and a sentence that says why. It is about
    records that were acknowledged with acks=all, and clean elections.

    Counting the missing replicas is not enough. `min.insync.replicas` may have been lower before, as it counts at most
    as many as the partition had replicas then, and the end of a reassignment may take members from the ISR. So one
    member of the last ISR must be there, too: it has all that was committed until then.
    """
    if choice is None:
        return "all records", f"no root that was read has a usable log; brokers {_named(known.replicas)} had replicas"
    unproven = [fork for fork in choice.forks if not fork.is_proven]
    if unproven:
        fork = unproven[0]
        return (
            f"records from offset {fork.offset} on",
            f"from there the logs of brokers {_named(fork.left)} differ from those of brokers {_named(fork.kept)}, and "
            "nothing tells for certain which of them was committed",
        )
    lost = f"records from offset {choice.log_end_offset} on"
    committed = told_as_committed(found.values())
    if committed > choice.log_end_offset:
        return lost, f"records up to offset {committed} were committed, and no usable log has them"
    count = f"{len(absent)} of {len(known.replicas)} replicas are missing"
    if len(absent) >= min_isr:
        return lost, f"{count}, and {min_isr} were enough to acknowledge"
    if known.isr and all(member in absent for member in known.isr):
        return lost, f"brokers {_named(known.isr)} were in sync, and all of them are missing"
    return None, f"{count}, and each acknowledged record is on at least {min_isr}"


def _named(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def is_gone(
    known: PartitionRegistration, found: Mapping[int, FoundReplica], is_name_taken: bool = False
) -> bool:  # fmt: skip
    """Whether a partition was deleted after its registration was seen: its replicas were stopped under a later leader
    epoch, and no broker has one. A replica whose root is missing may be left, unless `is_name_taken` by a
    later topic: a topic is made again only after all replicas were deleted."""
    if not is_name_taken and not all(broker in found for broker in known.replicas):
        return False
    roles = {broker: replica.log.role for broker, replica in found.items()}
    is_stopped = any(
        roles[b].kind == STOPPED and roles[b].leader_epoch > known.leader_epoch for b in known.replicas if b in roles
    )
    left = (b for b, role in roles.items() if role.kind != STOPPED and not (role.is_stray and b not in known.replicas))
    return is_stopped and not list(left)


def assigned_now(known: PartitionRegistration, found: Mapping[int, FoundReplica]) -> PartitionRegistration:
    """The registration with the replicas that the logs tell of: some may have come or gone since it was seen."""
    later = {b: replica for b, replica in found.items() if replica.log.role.leader_epoch > known.leader_epoch}
    stopped = {b for b, replica in later.items() if replica.log.role.kind == STOPPED}
    come = [b for b, replica in sorted(later.items()) if b not in known.replicas and replica.is_there]
    kept = [b for b in known.replicas if b not in stopped]
    replicas = (*kept, *(b for b in come if not found[b].log.role.is_stray))
    if replicas == known.replicas or not replicas:
        return known
    return replace(
        known, replicas=replicas, isr=tuple(b for b in known.isr if b in replicas) or replicas[:1],
        adding_replicas=tuple(b for b in known.adding_replicas if b in replicas),
        removing_replicas=tuple(b for b in known.removing_replicas if b in replicas),
    )  # fmt: skip


def has_changed_since(known: PartitionRegistration, found: Mapping[int, FoundReplica]) -> bool:
    """Whether a log has a later leader epoch than a registration: there was an election, or a reassignment has begun or
    ended, since the registration was seen."""
    return any(replica.log.role.leader_epoch > known.leader_epoch for replica in found.values())


def least_min_isr(known: PartitionRegistration, found: Mapping[int, FoundReplica], min_insync_replicas: int) -> int:
    """The fewest members of the ISR that may have been enough to acknowledge; see `effective_min_isr`. A reassignment
    may have ended since, and if the registration has changed, nobody knows how many replicas there were."""
    if has_changed_since(known, found):
        return 1
    assignments = (known.replicas, target_replicas(known), original_replicas(known))
    return effective_min_isr(min_insync_replicas, max(1, min(map(len, assignments))))


def unknown_partition(
    topic: str, partition: TopicIdPartition, found: Mapping[int, FoundReplica]
) -> PartitionRegistration:
    """The registration of a partition that no copy of the metadata has: it was made a moment before the loss. Its
    replicas are those that were found."""
    there = tuple(sorted(broker for broker, replica in found.items() if replica.is_there))
    return PartitionRegistration(topic, partition.topic_id, partition.partition, there, NO_LEADER, 0, there)


def producer_epoch(copied: ProducerIdAndEpoch, logs: Iterable[PartitionLog]) -> int:
    """The epoch of a named producer: the copy may be older than the last batches of the producer."""
    known = (log.producers.get(copied.producer_id) for log in logs)
    return max((copied.producer_epoch, *(entry.producer_epoch for entry in known if entry is not None)))
