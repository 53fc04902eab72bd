"""Plans the faults of a soak from a seed, so a failed run can be repeated."""

import argparse
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lakelog.replication.config import Owner

CLUSTER: Owner = "cluster"
BROKERS = (1, 2, 3)
# Whose roots are in object stores, by the argument `--store`.
DISKS = "disks"  # each root is on a disk of its own that really loses its power
STORED: Mapping[str, tuple[Owner, ...]] = {"mixed": (3,), "s3": (CLUSTER, *BROKERS), DISKS: ()}


class FaultKind(NamedTuple):
    """A kind of fault: its shortest and longest duration in seconds; whether a broker is away meanwhile; whether it may
    begin only while all replicas are in sync, as a partition has one replica less, or no process may start meanwhile;
    whether the root that it hits is in an object store (None: either); whether that is one of several cluster roots
    (True), the only cluster root (False), or the root of a broker (None)."""

    shortest: float
    longest: float
    takes_broker: bool
    takes_replica: bool
    is_stored: bool | None = None
    one_of_several: bool | None = None


# A frozen process resumes before its session time-out ("freeze") or after it ("expire"). A store may hang for less or
# for more than a session time-out, and than the storage time-out. An object store never loses acknowledged objects. A
# wrong cluster root is on a disk, where it comes and goes in one rename.
KINDS = {
    "kill-broker": FaultKind(0, 8, True, True),
    "kill-controller": FaultKind(0, 8, False, False),
    "kill-both": FaultKind(0, 8, True, True),
    "freeze-broker": FaultKind(0.5, 4, True, True),
    "expire-broker": FaultKind(7, 14, True, True),
    "freeze-controller": FaultKind(0.5, 4, False, False),
    "expire-controller": FaultKind(7, 14, False, False),
    "stop-broker": FaultKind(0, 5, True, True),
    "stop-controller": FaultKind(0, 5, False, False),
    "unwritable-root": FaultKind(2, 12, True, True, is_stored=False),
    "cut-power": FaultKind(0, 8, True, True, is_stored=False),
    "empty-root": FaultKind(0, 8, True, True),
    "hang-store": FaultKind(2, 14, True, True, is_stored=True),
    "fail-store": FaultKind(2, 12, True, True, is_stored=True),
    "rot": FaultKind(0, 0, False, True),
    "delete-records": FaultKind(0, 0, False, False),
    "reassign": FaultKind(0, 0, False, True),
    "preferred-election": FaultKind(0, 0, False, False),
    "empty-cluster-root": FaultKind(2, 14, False, True, is_stored=False, one_of_several=False),
    "older-cluster-root": FaultKind(2, 14, False, True, is_stored=False, one_of_several=False),
    "other-cluster-root": FaultKind(2, 14, False, True, is_stored=False, one_of_several=False),
    "lose-cluster-root": FaultKind(2, 14, False, False, one_of_several=True),
    "hang-cluster-root": FaultKind(2, 14, False, False, is_stored=True, one_of_several=True),
    "new-cluster-root": FaultKind(2, 14, False, False, one_of_several=True),
    "copy-broker": FaultKind(0, 5, False, True),
}


@dataclass(frozen=True)
class Fault:
    """A fault, the second of the soak before which it may not begin, and its duration in seconds.

    `brokers` has all brokers in random order. The fault hits the first one, and a reassignment uses that order. `place`
    (0 to 1) chooses the partition, and `extent` (0 to 1) the part of a log that is deleted.
    """

    at_s: float
    kind: str
    lasts_s: float
    brokers: tuple[int, ...]
    place: float
    extent: float

    @property
    def broker(self) -> int:
        """The broker that the fault hits, if it hits one."""
        return self.brokers[0]

    @property
    def takes_broker(self) -> bool:
        """Whether a broker is away during the fault."""
        return KINDS[self.kind].takes_broker

    @property
    def takes_replica(self) -> bool:
        """Whether a partition has only two replicas for a while, or no process may start: all are in sync first."""
        return KINDS[self.kind].takes_replica


def plan_faults(
    seed: int, seconds: float, faults: int, brokers: Sequence[int], stored: Collection[Owner],
    kinds: Sequence[str] = tuple(KINDS), cluster_roots: int = 1,
) -> tuple[Fault, ...]:  # fmt: skip
    """Plans faults of these kinds, spread evenly over the time. It draws all kinds in random order, then all again.

    Each fault has an equal share of the time (`seconds`) and begins in the first half of it. `stored` are the
    owners of roots in object stores. Kinds that can hit no root are left out, as those of the only cluster root where
    there are several; raises ValueError if none is left.
    """
    victims = {kind: _victims(KINDS[kind], brokers, stored, cluster_roots > 1) for kind in kinds}
    kinds = [kind for kind in kinds if victims[kind]]
    if not kinds:
        raise ValueError("no root is where these faults happen")
    draw = random.Random(seed)
    part = seconds / max(faults, 1)
    turns = _turns(draw, kinds)
    return tuple(
        _fault(draw, next(turns), part * (number + draw.uniform(0, 0.5)), brokers, victims) for number in range(faults)
    )


def _turns(draw: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from draw.sample(list(kinds), len(kinds))


def _fault(
    draw: random.Random, kind: str, at: float, brokers: Sequence[int], victims: Mapping[str, Sequence[int]]
) -> Fault:
    found = KINDS[kind]
    lasts = draw.uniform(found.shortest, found.longest)
    hit = draw.choice(victims[kind])
    others = draw.sample([b for b in brokers if b != hit], len(brokers) - 1)
    return Fault(round(at, 1), kind, round(lasts, 1), (hit, *others), draw.random(), draw.random())


def _victims(kind: FaultKind, brokers: Sequence[int], stored: Collection[Owner], are_several: bool) -> list[int]:
    """The brokers that a fault may hit: all if it hits a cluster root, none if there is no root that it hits."""
    if kind.one_of_several is None:
        return [broker for broker in brokers if kind.is_stored in (None, broker in stored)]
    is_there = kind.one_of_several == are_several and kind.is_stored in (None, CLUSTER in stored)
    return list(brokers) if is_there else []


def kinds_of(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of fault kinds. Raises ArgumentTypeError if one is unknown."""
    kinds = tuple(text.split(","))
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: unknown; allowed: {','.join(KINDS)}")
    return kinds
