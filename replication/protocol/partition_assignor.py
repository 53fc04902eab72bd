"""How the partitions of topics are shared out among the members of a consumer group.

Both assignors are used step by step, as Kafka's cooperative protocol does it: a member gets a partition only after its
owner has given it up. Kafka: `RangeAssignor`, `CooperativeStickyAssignor`, `AbstractStickyAssignor`. KIP-54, KIP-429.
[AP-04]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lakelog.replication.protocol.record_batch import OfPartition


@dataclass(frozen=True, slots=True, order=True)
class AssignedPartition(OfPartition):
    """A partition of one incarnation of a topic, with the topic's name."""

    topic: str
    topic_id: str
    partition: int


Partitions: TypeAlias = tuple[AssignedPartition, ...]


@dataclass(frozen=True)
class Subscription:
    """The topics that a member wants to read, what was assigned to it last, and what it owns: has not given up yet."""

    topics: Collection[str]
    assigned: Collection[AssignedPartition] = field(default=())
    owned: Collection[AssignedPartition] = field(default=())


Assignor: TypeAlias = Callable[[Mapping[str, Subscription], Collection[AssignedPartition]], dict[str, Partitions]]


def assign_ranges(
    members: Mapping[str, Subscription], partitions: Collection[AssignedPartition]
) -> dict[str, Partitions]:
    """Gives each member consecutive partitions of each topic; the first members, by id, get one more where they do not
    divide evenly. Topics with equally many partitions are divided alike, which helps to join them.

    Kafka: `RangeAssignor.assign`. [AP-04]
    """
    found: dict[str, list[AssignedPartition]] = {member: [] for member in members}
    for topic in sorted({partition.topic for partition in partitions}):
        takers = [member for member in sorted(members) if topic in members[member].topics]
        of_topic = sorted(partition for partition in partitions if partition.topic == topic)
        for number, member in enumerate(takers):
            each, extra = divmod(len(of_topic), len(takers))
            start = number * each + min(number, extra)
            found[member] += of_topic[start : start + each + (number < extra)]
    return {member: tuple(assigned) for member, assigned in found.items()}


def assign_stickily(
    members: Mapping[str, Subscription], partitions: Collection[AssignedPartition]
) -> dict[str, Partitions]:
    """Shares partitions out evenly, and moves as few of them as that takes.

    Members keep what was assigned to them. A partition without an owner goes to the member with the fewest, if possible
    to its owner. Then partitions move from members with more to members with at least two fewer. Each such move makes
    the shares more equal, so there is an end.

    Kafka: `AbstractStickyAssignor.assignPartitions`, `CooperativeStickyAssignor`. KIP-54, KIP-429. [AP-04]
    """
    shares = _Shares(members, partitions)
    for partition in sorted(set(partitions) - shares.given()):
        taker = shares.taker_of(partition)
        if taker is not None:
            shares.of[taker].append(partition)
    while shares.move_one():
        continue
    return {member: tuple(sorted(assigned)) for member, assigned in shares.of.items()}


class _Shares:
    """The partitions that each member gets. It keeps the first ones if others must go."""

    def __init__(self, members: Mapping[str, Subscription], partitions: Collection[AssignedPartition]) -> None:
        there = set(partitions)
        self._members = members
        self._takers: dict[str, list[str]] = {}
        self.of = {
            member: [p for p in _kept_first(has) if p in there and p.topic in has.topics]
            for member, has in sorted(members.items())
        }

    def given(self) -> set[AssignedPartition]:
        return {partition for assigned in self.of.values() for partition in assigned}

    def taker_of(self, partition: AssignedPartition) -> str | None:
        """The subscribed member with the fewest partitions, the owner if it is one of several; None if no member is."""
        takers = self._subscribed(partition.topic)
        return min(takers, key=lambda m: (len(self.of[m]), partition not in self._members[m].owned), default=None)

    def _subscribed(self, topic: str) -> Sequence[str]:
        if topic not in self._takers:
            self._takers[topic] = [member for member, has in sorted(self._members.items()) if topic in has.topics]
        return self._takers[topic]

    def move_one(self) -> bool:
        """Moves one partition to a member that has at least two fewer than its owner; False if there is none."""
        for giver in sorted(self.of, key=lambda member: -len(self.of[member])):
            has = self.of[giver]
            tried: set[str] = set()
            for place in range(len(has) - 1, -1, -1):
                topic = has[place].topic
                taker = None if topic in tried else self.taker_of(has[place])
                tried.add(topic)
                if taker is not None and len(self.of[taker]) + 1 < len(has):
                    self.of[taker].append(has.pop(place))
                    return True
        return False


def _kept_first(has: Subscription) -> list[AssignedPartition]:
    """The partitions that a member owns already come first, so that those go that would have to move anyway."""
    owned = set(has.owned)
    return sorted(has.assigned, key=lambda partition: (partition not in owned, partition))


ASSIGNORS: Mapping[str, Assignor] = {"range": assign_ranges, "cooperative-sticky": assign_stickily}


def common_assignor(preferences: Iterable[Sequence[str]]) -> str | None:
    """The assignor that all members know and most prefer; of equals, that of the first member. None if there is none.

    `preferences`: the names that each member knows, the best one first. Kafka: `GroupMetadata.selectProtocol`. [AP-04]
    """
    lists = list(preferences)
    known = [name for name in (lists[0] if lists else ()) if name in ASSIGNORS and all(name in one for one in lists)]
    votes = [next(name for name in one if name in known) for one in lists] if known else []
    return max(known, key=votes.count, default=None)
