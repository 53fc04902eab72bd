"""Plans of reassignments that move as few replicas as possible: off some brokers, onto new ones, or to a replacement.

A plan is what a reassignment takes: the new replicas of each partition that changes. A replica that moves keeps its
place in the list, and another one comes to the front only to spread leaders. Kafka's tool has only `--generate`, which
spreads the replicas of a topic anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from lakelog.replication.errors import InvalidReplicaAssignmentException, InvalidReplicationFactorException
from lakelog.replication.protocol.partition_changes import first_names

Partition: TypeAlias = tuple[str, int]
Plan: TypeAlias = dict[Partition, tuple[int, ...]]

_SHOWN = 5  # the most partitions that an error text lists
_DISTANCE = 2  # loads that are closer than this are as even as they can be


@dataclass(frozen=True)
class Layout:
    """The replicas of a cluster, the first one of each partition being its preferred leader.

    `sizes`: the bytes of one replica of each partition; one that is missing counts as empty. `racks`: the rack of each
    broker; racks are ignored if any open broker has none, and another one without is on a rack of its own. `open`: the
    brokers that may get new replicas.
    """

    replicas: Mapping[Partition, Sequence[int]]
    racks: Mapping[int, str | None]
    open: frozenset[int]
    sizes: Mapping[Partition, int] = field(default_factory=dict)

    @property
    def known_racks(self) -> Mapping[int, str | None]:
        """The racks of the brokers, none if they are ignored."""
        return {} if any(self.racks.get(broker) is None for broker in self.open) else self.racks

    def number_of_racks(self, replicas: Iterable[int]) -> int:
        """The number of racks that brokers are on; 1 if racks are ignored."""
        known = self.known_racks
        return len({known.get(broker) for broker in replicas})

    def on_fewer_racks(self, plan: Plan) -> list[Partition]:
        """The partitions that are on fewer racks after the plan than before."""
        before = self.replicas
        return [p for p, r in plan.items() if self.number_of_racks(r) < self.number_of_racks(before[p])]

    def moved(self, plan: Plan) -> dict[Partition, tuple[set[int], set[int]]]:
        """The brokers that each partition of the plan leaves, and those that it comes to."""
        return {p: (set(self.replicas[p]) - set(r), set(r) - set(self.replicas[p])) for p, r in plan.items()}


def drain(layout: Layout, brokers: Collection[int]) -> Plan:
    """Moves all replicas off some brokers, and no other one. They go to the open brokers with the fewest replicas, then
    with the fewest preferred leaders, then with the fewest bytes, so that no other choice for one of them would leave
    replicas more even. No partition is on fewer racks than before, unless no open broker is left on another rack.

    Raises InvalidReplicationFactorException if a partition has more replicas than brokers are left for it.
    """
    draft = _Draft(layout, layout.open - set(brokers))
    leaving = {p: [broker in brokers for broker in replicas] for p, replicas in layout.replicas.items()}
    held_by_size = sorted((p for p, these in leaving.items() if any(these)), key=lambda p: (-draft.sizes[p], p))
    for partition in held_by_size:
        draft.place(partition, [place for place, leaves in enumerate(leaving[partition]) if leaves])
    _level_replicas(draft, lambda partition, place: leaving[partition][place])
    _level_leaders(draft, [partition for partition in held_by_size if leaving[partition][0]])
    return draft.plan()


def rebalance(layout: Layout) -> Plan:
    """Moves replicas between open brokers until these differ by one replica at most, and by one preferred leader, as
    far as racks and replicas allow. It moves the least number of replicas that this takes, small partitions first. No
    partition is on fewer racks than before.

    Replicas on brokers that are not open stay. Where racks forbid a direct move, a replica moves by way of a third
    broker, so more replicas may move than the loads of brokers alone ask for.
    """
    draft = _Draft(layout, layout.open)
    _level_replicas(draft, lambda *_: True)
    _level_leaders(draft, layout.replicas)
    return draft.plan()


def replace_broker(layout: Layout, old: int, new: int) -> Plan:
    """Gives the replicas of one broker to another one, each in its place.

    Raises InvalidReplicaAssignmentException if the new broker is not open, or has a replica of one of the partitions.
    """
    if new not in layout.open:
        raise InvalidReplicaAssignmentException(
            f"broker {new} gets no new replica: it is not alive, or is cordoned; open brokers: {_numbers(layout.open)}"
        )
    held = {p: replicas for p, replicas in layout.replicas.items() if old in replicas}
    both = [f"{topic}-{number}" for (topic, number), replicas in sorted(held.items()) if new in replicas]
    if both:
        raise InvalidReplicaAssignmentException(
            f"broker {new} has replicas of {first_names(both, _SHOWN)} already, and a partition has one on a broker: "
            f"name a broker without any, or drain broker {old}"
        )
    return {p: tuple(new if broker == old else broker for broker in replicas) for p, replicas in held.items()}


class _Draft:
    """Replicas as planned so far. `open`: the brokers among which they move."""

    def __init__(self, layout: Layout, open_brokers: Collection[int]) -> None:
        self.layout = layout
        self.open = sorted(open_brokers)
        self.replicas = {partition: list(replicas) for partition, replicas in layout.replicas.items()}
        self.sizes = {partition: layout.sizes.get(partition, 0) for partition in layout.replicas}
        racks = layout.known_racks
        self._rack = {b: racks.get(b) for replicas in layout.replicas.values() for b in replicas}
        self._rack |= {b: racks.get(b) for b in self.open}
        self._least_racks = {partition: self._racks_of(replicas) for partition, replicas in self.replicas.items()}
        self.loads = Counter(broker for replicas in self.replicas.values() for broker in replicas)
        self.leaders = Counter(replicas[0] for replicas in self.replicas.values())
        self._bytes = Counter[int]()
        for partition, replicas in self.replicas.items():
            self._bytes.update(dict.fromkeys(replicas, self.sizes[partition]))

    def plan(self) -> Plan:
        """The partitions that have changed."""
        before = self.layout.replicas
        return {p: tuple(replicas) for p, replicas in sorted(self.replicas.items()) if replicas != list(before[p])}

    def is_changed(self, partition: Partition) -> bool:
        return self.replicas[partition] != list(self.layout.replicas[partition])

    def _racks_of(self, replicas: Iterable[int]) -> int:
        return len({self._rack[broker] for broker in replicas})

    def place(self, partition: Partition, places: Sequence[int]) -> None:
        """Finds other brokers for these places of a partition. Raises InvalidReplicationFactorException."""
        replicas = self.replicas[partition]
        kept = [broker for place, broker in enumerate(replicas) if place not in places]
        free = [broker for broker in self.open if broker not in replicas]
        if len(free) < len(places):
            raise InvalidReplicationFactorException(
                f"{partition[0]}-{partition[1]}: {len(places)} of its {len(replicas)} replicas must move, and too few "
                f"other brokers are alive, not cordoned and not drained: {_numbers(free)}"
            )
        self._least_racks[partition] = min(self._least_racks[partition], self._most_racks(kept, free, len(places)))
        for number, place in enumerate(places):
            later = len(places) - number - 1
            allowed = [b for b in free if self._reaches(partition, [*kept, b], [c for c in free if c != b], later)]
            chosen = min((self._rank(broker, place == 0), broker) for broker in allowed)[1]
            self.move(partition, replicas[place], chosen)
            kept.append(chosen)
            free.remove(chosen)

    def _most_racks(self, kept: Sequence[int], free: Sequence[int], count: int) -> int:
        racks = {self._rack[broker] for broker in kept}
        return len(racks) + min(count, len({self._rack[broker] for broker in free} - racks))

    def _reaches(self, partition: Partition, kept: Sequence[int], free: Sequence[int], count: int) -> bool:
        return self._most_racks(kept, free, count) >= self._least_racks[partition]

    def _rank(self, broker: int, leads: bool) -> tuple[int, int, int]:
        return self.loads[broker], self.leaders[broker] if leads else 0, self._bytes[broker]

    def may_move(self, partition: Partition, here: int, there: int) -> bool:
        """Whether a replica of the partition may go from one broker to another."""
        replicas = self.replicas[partition]
        if here not in replicas or there in replicas:
            return False
        if self._rack[here] == self._rack[there]:
            return True
        after = {self._rack[broker] for broker in replicas if broker != here} | {self._rack[there]}
        return len(after) >= self._least_racks[partition]

    def move(self, partition: Partition, here: int, there: int) -> None:
        """Moves a replica; it keeps its place."""
        replicas = self.replicas[partition]
        place = replicas.index(here)
        replicas[place] = there
        self.loads.update({here: -1, there: 1})
        self._bytes.update({here: -self.sizes[partition], there: self.sizes[partition]})
        if place == 0:
            self.leaders.update({here: -1, there: 1})

    def lead(self, partition: Partition, here: int, there: int) -> None:
        """Lets another replica of the partition be the first one: both change places."""
        replicas = self.replicas[partition]
        place = replicas.index(there)
        replicas[0], replicas[place] = there, here
        self.leaders.update({here: -1, there: 1})


def _level_replicas(draft: _Draft, is_movable: Callable[[Partition, int], bool]) -> None:
    """Moves replicas in movable places. One that has moved costs nothing more, and goes first; then the smallest."""

    def may_move(partition: Partition, here: int, there: int) -> bool:
        if not draft.may_move(partition, here, there):
            return False
        return is_movable(partition, draft.replicas[partition].index(here))

    def cost(partition: Partition, here: int) -> tuple[bool, int]:
        return here in draft.layout.replicas[partition], draft.sizes[partition]

    held: dict[int, list[Partition]] = {broker: [] for broker in draft.open}
    for partition, replicas in draft.replicas.items():
        for place, broker in enumerate(replicas):
            if broker in held and is_movable(partition, place):
                held[broker].append(partition)
    _Level(draft.loads, draft.open, held, draft.replicas, may_move, cost, draft.move).run()


def _level_leaders(draft: _Draft, partitions: Iterable[Partition]) -> None:
    """Lets other replicas of these partitions be the first ones; of those that change anyway first."""

    def may_lead(partition: Partition, here: int, there: int) -> bool:
        replicas = draft.replicas[partition]
        return replicas[0] == here and there in replicas

    held: dict[int, list[Partition]] = {broker: [] for broker in draft.open}
    for partition in partitions:
        if draft.replicas[partition][0] in held:
            held[draft.replicas[partition][0]].append(partition)
    _Level(
        draft.leaders, draft.open, held, draft.replicas, may_lead, lambda p, _: (not draft.is_changed(p), 0), draft.lead
    ).run()


class _Level:
    """Makes the loads of brokers even: moves one partition after the other from a broker to one with two less, or along
    a chain of brokers, until no such chain is left. Then no other choice is more even, as for semi-matchings. Where
    every broker may give to every other one, each move is of the fullest to the emptiest, so that none gives and takes:
    the number of moves is the least.

    `held`: the partitions of which each broker has a unit. `holders`: the brokers that a partition may move between.
    """

    def __init__(
        self, loads: Counter[int], brokers: Sequence[int], held: Mapping[int, list[Partition]],
        holders: Mapping[Partition, Sequence[int]], may_move: Callable[[Partition, int, int], bool],
        cost: Callable[[Partition, int], tuple[bool, int]], move: Callable[[Partition, int, int], None],
    ) -> None:  # fmt: skip
        self._loads = loads
        self._brokers = brokers
        self._held = held
        self._holders = holders
        self._may_move = may_move
        self._cost = cost
        self._move = move
        # The partitions that may go from one broker to another, the cheapest on top. One that may not go any more is
        # dropped when it is met, and comes back when its replicas change.
        self._heaps: dict[int, dict[int, list[tuple[bool, int, Partition]]]] = {broker: {} for broker in brokers}

    def run(self) -> None:
        """Moves until the loads are as even as they can be."""
        stuck, has_moved = set[int](), False
        while True:
            chain = self._next_chain(stuck)
            if chain and self._carry_out(chain):
                has_moved = True
            elif chain:
                stuck.add(chain[0])
            elif has_moved:  # this may have opened a way for those that had none
                stuck, has_moved = set(), False
            else:
                return

    def _next_chain(self, stuck: set[int]) -> list[int]:
        """The chain that begins at the fullest broker that has one; adds those before it to the stuck ones."""
        for broker in sorted(set(self._brokers) - stuck, key=lambda b: (-self._loads[b], b)):
            if chain := self._chain(broker):
                return chain
            stuck.add(broker)
        return []

    def _chain(self, start: int) -> list[int]:
        """The shortest chain from a broker to one with two less; empty if there is none. Of several it takes one to the
        emptiest broker, of these the one with the cheapest last link."""
        before, front = {start: start}, [start]
        by_load = sorted(self._brokers, key=lambda b: (self._loads[b], b))
        while front and self._is_end(by_load[0], start):
            found: list[tuple[tuple[bool, int, Partition], int]] = []
            came_from: dict[int, int] = {}
            for there in by_load:
                if found and self._loads[there] > self._loads[found[0][1]]:
                    break
                links = [(best, here) for here in front if there not in before and (best := self._best(here, there))]
                if links:
                    best, before_there = min(links)
                    came_from[there] = before_there
                    if self._is_end(there, start):
                        found.append((best, there))
            before |= came_from
            if found:
                return _way(before, min(found)[1])
            front = list(came_from)
        return []

    def _is_end(self, broker: int, start: int) -> bool:
        return self._loads[broker] <= self._loads[start] - _DISTANCE

    def _best(self, here: int, there: int) -> tuple[bool, int, Partition] | None:
        """The cheapest partition that may go from one broker to another."""
        heap = self._heaps[here].get(there)
        if heap is None:
            may = [p for p in self._held[here] if self._may_move(p, here, there)]
            heap = self._heaps[here][there] = [(*self._cost(p, here), p) for p in may]
            heapify(heap)
        while heap and not self._may_move(heap[0][-1], here, there):
            heappop(heap)
        return heap[0] if heap else None

    def _carry_out(self, chain: Sequence[int]) -> bool:
        """Moves a partition along each link, the last link first. A partition that two links share may forbid one of
        them; what has moved by then is no less even than before. Returns whether all have moved."""
        for here, there in reversed(list(pairwise(chain))):
            best = self._best(here, there)
            if best is None:
                return False
            self._note_move(best[-1], here, there)
        return True

    def _note_move(self, partition: Partition, here: int, there: int) -> None:
        self._move(partition, here, there)
        self._held[there].append(partition)  # `_best` asks whether it is still at the other one
        for holder in self._holders[partition]:
            for other, heap in self._heaps.get(holder, {}).items():
                if self._may_move(partition, holder, other):
                    heappush(heap, (*self._cost(partition, holder), partition))


def _way(before: Mapping[int, int], end: int) -> list[int]:
    way = [end]
    while before[way[-1]] != way[-1]:
        way.append(before[way[-1]])
    return way[::-1]


def _numbers(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "none"
