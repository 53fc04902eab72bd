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
    whether the broker's root is in an object store (None: either); whether it hits the only cluster root, which must be
    on a disk then: there the wrong root comes and goes in one rename; whether it hits one of several cluster roots."""

    shortest: float
    longest: float
    takes_broker: bool
    takes_replica: bool
    is_stored: bool | None = None
    hits_cluster: bool = False
    hits_one_of_several: bool = False


# A frozen process resumes before its session time-out ("freeze") or after it ("expire"). A store may hang for less or
# for more than a session time-out. An object store never loses acknowledged objects.
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
    "empty-cluster-root": FaultKind(2, 14, False, True, hits_cluster=True),
    "older-cluster-root": FaultKind(2, 14, False, True, hits_cluster=True),
    "other-cluster-root": FaultKind(2, 14, False, True, hits_cluster=True),
    "lose-cluster-root": FaultKind(2, 14, False, False, hits_one_of_several=True),
    "new-cluster-root": FaultKind(2, 14, False, False, hits_one_of_several=True),
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
    several = cluster_roots > 1
    left_out = {k for k, kind in KINDS.items() if (kind.hits_cluster and several) or kind.hits_one_of_several > several}
    kinds = [kind for kind in kinds if kind not in left_out and _victims(kind, brokers, stored)]
    if not kinds:
        raise ValueError("no root is where these faults happen")
    draw = random.Random(seed)
    part = seconds / max(faults, 1)
    turns = _turns(draw, kinds)
    return tuple(
        _fault(draw, next(turns), part * (number + draw.uniform(0, 0.5)), brokers, stored) for number in range(faults)
    )


def _turns(draw: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from draw.sample(list(kinds), len(kinds))


def _fault(draw: random.Random, kind: str, at: float, brokers: Sequence[int], stored: Collection[Owner]) -> Fault:
    found = KINDS[kind]
    lasts = draw.uniform(found.shortest, found.longest)
    hit = draw.choice(_victims(kind, brokers, stored))
    others = draw.sample([b for b in brokers if b != hit], len(brokers) - 1)
    return Fault(round(at, 1), kind, round(lasts, 1), (hit, *others), draw.random(), draw.random())


def _victims(kind: str, brokers: Sequence[int], stored: Collection[Owner]) -> list[int]:
    if KINDS[kind].hits_cluster and CLUSTER in stored:
        return []
    return [broker for broker in brokers if KINDS[kind].is_stored in (None, broker in stored)]


def kinds_of(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of fault kinds. Raises ArgumentTypeError if one is unknown."""
    kinds = tuple(text.split(","))
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: unknown; allowed: {','.join(KINDS)}")
    return kinds
