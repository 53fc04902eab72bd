"""The state of a consumer group, the rules by which its members change it, and who may commit its offsets.

There is no coordinator. The members share a table, and the first one that sees that a change is needed computes it: a
member has joined, has left or is dead, or a topic has other partitions. Each such change raises the generation and
assigns all partitions anew. A member then gives up what it owns and is no longer assigned, and takes what it is
assigned once no member owns it. So a partition never has two owners.

Kafka: `GroupCoordinator`, `GroupMetadata`, `ConsumerCoordinator`. KIP-429, KIP-848. [AP-04]
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from lakelog.replication.errors import (
    FencedInstanceIdException,
    GroupIdNotFoundException,
    IllegalGenerationException,
    InconsistentGroupProtocolException,
    UnknownMemberIdException,
)
from lakelog.replication.protocol.partition_assignor import (
    ASSIGNORS,
    AssignedPartition,
    Partitions,
    Subscription,
    common_assignor,
)

EMPTY, STABLE, RECONCILING = "Empty", "Stable", "Reconciling"

# The partitions that some topics have now.
PartitionsOf: TypeAlias = Callable[[Collection[str]], Collection[AssignedPartition]]

NO_FENCE = 0  # of a group that no member has joined yet


@dataclass(frozen=True)
class GroupMember:
    """A consumer that has subscribed. `topics`: its subscription. `assignors`: those that it knows, the best one first.

    `assigned`: the partitions that it is to own in the group's generation. `owned`: those that no other member may
    take. `slot` is the number of its heartbeat, a counter that moves as long as it lives. `instance_id`: the name of a
    static member, which is the same after a restart (KIP-345).
    """

    member_id: str
    client_id: str
    host: str
    slot: int
    session_timeout_ms: int
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    assigned: Partitions = ()
    owned: Partitions = ()
    heartbeat: int = 0
    instance_id: str | None = None


@dataclass(frozen=True)
class ConsumerGroup:
    """A group in one generation. Members are in the order of their ids. `is_closed`: nobody has used the group for a
    while, so the next members join another table."""

    generation: int = 0
    members: tuple[GroupMember, ...] = ()
    is_closed: bool = False

    def member(self, member_id: str) -> GroupMember:
        """The member with this id. Raises UnknownMemberIdException if the group has none, or has it no longer."""
        for member in self.members:
            if member.member_id == member_id:
                return member
        raise UnknownMemberIdException(f"member {member_id} is not in the group: it has left, or its session timed out")

    def own_member(self, member_id: str, instance_id: str | None) -> GroupMember:
        """The member of a process that asks for itself. Raises as `member`, or FencedInstanceIdException if another
        process has taken its place as a static member."""
        heir = self.instance(instance_id)
        if heir is not None and heir.member_id != member_id:
            raise FencedInstanceIdException(
                f"group.instance.id is {instance_id}, but member {heir.member_id} on {heir.host} has the same and has "
                "taken the place of this consumer: give each consumer of a group one of its own"
            )
        return self.member(member_id)

    def instance(self, instance_id: str | None) -> GroupMember | None:
        """The static member of this name; None if there is none."""
        return next((m for m in self.members if instance_id is not None and m.instance_id == instance_id), None)

    @property
    def assignor(self) -> str | None:
        """The name of the assignor that all members know and most prefer; None without members."""
        return common_assignor(member.assignors for member in self.members)

    @property
    def topics(self) -> set[str]:
        """The topics that any member has subscribed to."""
        return {topic for member in self.members for topic in member.topics}

    @property
    def state(self) -> str:
        """Stable if every member owns what it is assigned, and nothing else."""
        is_done = all(set(member.assigned) == set(member.owned) for member in self.members)
        return (STABLE if is_done else RECONCILING) if self.members else EMPTY

    def with_member(self, changed: GroupMember) -> ConsumerGroup:
        """The group with one member changed or added, in the same generation."""
        others = [member for member in self.members if member.member_id != changed.member_id]
        return replace(self, members=tuple(sorted([*others, changed], key=lambda member: member.member_id)))


def join(group: ConsumerGroup, member: GroupMember, partitions: PartitionsOf) -> ConsumerGroup:
    """Adds a member, or changes its subscription, in the next generation. A new member gets the lowest free slot.

    A static member takes the place of the last member with its instance id, and gets the partitions which that one is
    assigned and owns. If both have the same subscription, nothing is assigned anew: only the generation rises, which
    fences the last one.

    Kafka: `GroupCoordinator.handleJoinGroup`, `GroupCoordinator.updateStaticMemberAndRebalance` (KIP-345). Raises
    InconsistentGroupProtocolException if no assignor is known to all, and GroupIdNotFoundException if the group is
    closed (in Kafka: Dead).
    """
    if group.is_closed:
        raise GroupIdNotFoundException("the group is closed: nobody has used it for a while, and its members are gone")
    before = group.instance(member.instance_id)
    if before is not None:
        heir = replace(
            member, slot=before.slot, topics=before.topics, assignors=before.assignors, assigned=before.assigned,
            owned=before.owned, heartbeat=before.heartbeat,
        )  # fmt: skip
        group = replace(group, members=tuple(m for m in group.members if m is not before)).with_member(heir)
        if (before.topics, before.assignors) == (member.topics, member.assignors):
            return replace(group, generation=group.generation + 1)
    known = {other.member_id: other for other in group.members}
    taken = {other.slot for other in group.members}
    slot = next(number for number in range(len(taken) + 1) if number not in taken)
    last = known.get(member.member_id, replace(member, slot=slot))
    joined = group.with_member(replace(last, topics=member.topics, assignors=member.assignors))
    if joined.assignor is None:
        others = sorted({name for other in group.members for name in other.assignors})
        raise InconsistentGroupProtocolException(
            f"partition.assignment.strategy is {','.join(member.assignors)}, but the members of the group know "
            f"{', '.join(others)}: all must know one in common"
        )
    return rebalance(joined, partitions)


def without(group: ConsumerGroup, member_ids: Collection[str], partitions: PartitionsOf) -> ConsumerGroup:
    """Removes members that leave, or whose session has timed out, in the next generation. Others may take their
    partitions at once. Returns the group itself if it has none of these members.

    Kafka: `GroupCoordinator.handleLeaveGroup`, `GroupCoordinator.onExpireHeartbeat`.
    """
    left = tuple(member for member in group.members if member.member_id not in member_ids)
    return group if left == group.members else rebalance(replace(group, members=left), partitions)


def needs_rebalance(group: ConsumerGroup, partitions: PartitionsOf) -> bool:
    """Whether the partitions of the topics are no longer those that are assigned.

    Kafka: `ConsumerCoordinator.rejoinNeededOrPending`, where each client watches the metadata.
    """
    assigned = {partition for member in group.members for partition in member.assigned}
    return bool(group.members) and assigned != set(partitions(group.topics))


def rebalance(group: ConsumerGroup, partitions: PartitionsOf) -> ConsumerGroup:
    """The next generation: all partitions are assigned anew. What each member owns stays the same.

    Kafka: `ConsumerCoordinator.onLeaderElected`. Raises InconsistentGroupProtocolException if this version knows no
    assignor that all members know, as those of a newer version may have another one.
    """
    raised = replace(group, generation=group.generation + 1)
    if not group.members:
        return raised
    assignor = group.assignor
    if assignor is None:
        names = sorted({name for member in group.members for name in member.assignors})
        raise InconsistentGroupProtocolException(
            f"the members of the group know the assignors {', '.join(names)}, and this version of Lakelog knows "
            f"{', '.join(ASSIGNORS)}: leave it to the members to remove each other"
        )
    subscriptions = {m.member_id: Subscription(m.topics, m.assigned, m.owned) for m in group.members}
    shares = ASSIGNORS[assignor](subscriptions, partitions(group.topics))
    return replace(raised, members=tuple(replace(m, assigned=shares[m.member_id]) for m in group.members))


def to_give_up(group: ConsumerGroup, member_id: str) -> Partitions:
    """The partitions that a member owns and is no longer assigned. Before it gives them up, it commits their offsets,
    and it returns no more of their records.

    Kafka: `ConsumerCoordinator.onJoinPrepare`, `revokePartitions`. Raises UnknownMemberIdException.
    """
    member = group.member(member_id)
    return tuple(sorted(set(member.owned) - set(member.assigned)))


def to_take(group: ConsumerGroup, member_id: str) -> Partitions:
    """The partitions that the member is assigned and no member owns. It takes the rest once their owners have given
    them up or are dead.

    Kafka: `CooperativeStickyAssignor.adjustAssignment`. Raises UnknownMemberIdException.
    """
    owned = {partition for member in group.members for partition in member.owned}
    return tuple(sorted(set(group.member(member_id).assigned) - owned))


def give_up(group: ConsumerGroup, member_id: str, partitions: Collection[AssignedPartition]) -> ConsumerGroup:
    """The group after the member has given up these partitions. Raises UnknownMemberIdException."""
    member = group.member(member_id)
    return group.with_member(replace(member, owned=tuple(p for p in member.owned if p not in partitions)))


def take(group: ConsumerGroup, member_id: str) -> ConsumerGroup:
    """The group after the member has taken all that it may take. Raises UnknownMemberIdException."""
    member, taken = group.member(member_id), to_take(group, member_id)
    return group.with_member(replace(member, owned=tuple(sorted({*member.owned, *taken})))) if taken else group


def fence_of(generation: int, has_members: bool) -> int:
    """The fence of a generation: twice the generation, and 1 more while the group has members.

    The offsets of all groups are in one table, and the members of each group in another. So the table of offsets has a
    fence for each group. A member raises it before it reads the offsets of partitions that it has taken. From that
    commit on, a member that was removed before cannot commit. Kafka: `GroupCoordinator.validateOffsetCommit`. [AP-04]
    """
    return 2 * generation + has_members


def generation_of(fence: int) -> int:
    """The generation that the fence is of."""
    return fence // 2


def has_members(fence: int) -> bool:
    """Whether the group had members when the fence was raised. They may have died since."""
    return fence % 2 == 1


def check_may_commit(fence: int, generation: int | None, group: str) -> None:
    """Refuses a commit of a member that may have been removed, and while the group has members also one of others.

    `generation`: the newest one in which the member has seen itself in the group; None for a consumer that is no
    member. A member that is refused and still in the group reads the group again, and commits under its new generation.

    Raises IllegalGenerationException for a member, UnknownMemberIdException for others.
    """
    if generation is None and has_members(fence):
        raise UnknownMemberIdException(f"group {group} has members: others cannot change its offsets meanwhile")
    if generation is not None and generation < generation_of(fence):
        raise IllegalGenerationException(
            f"group {group}: generation {generation} is over, the group is in generation {generation_of(fence)}"
        )


class MemberLiveness:
    """The heartbeats that an observer has seen. `clock`: monotonic, in seconds.

    An observer takes a member for dead once its heartbeat has not moved for the member's session time-out, on the
    observer's own clock. The member trusts itself for a heartbeat interval less, counted from the begin of its last
    successful heartbeat, which is before any observer can have seen that: see `is_trusted`. So it stops before others
    go on, and no clocks are compared. Kafka: `Heartbeat`,
    `GroupCoordinator.completeAndScheduleNextHeartbeatExpiration`. [AP-04]
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sightings: dict[str, tuple[int, float]] = {}

    def dead(self, group: ConsumerGroup) -> set[str]:
        """Records the heartbeats, and returns the ids of the members that are dead. A member that is seen for the first
        time is not."""
        now = self._clock()
        known = self._sightings
        self._sightings = {
            m.member_id: known[m.member_id] if known.get(m.member_id, (-1,))[0] == m.heartbeat else (m.heartbeat, now)
            for m in group.members
        }
        return {m.member_id for m in group.members if now - self._since(m.member_id) >= m.session_timeout_ms / 1000}

    def _since(self, member_id: str) -> float:
        return self._sightings[member_id][1]


def is_trusted(now: float, beat_at: float, session_timeout_ms: int, heartbeat_interval_ms: int) -> bool:
    """Whether a member may still return records. `beat_at`: when its last successful heartbeat began, in seconds, which
    is before any observer can have seen it."""
    return now < beat_at + (session_timeout_ms - heartbeat_interval_ms) / 1000
