"""What is going to go wrong in a soak, and when: drawn from a seed, so that a run that failed can be made again."""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class FaultKind(NamedTuple):
    """A kind of fault: how many seconds it lasts, at least and at most; whether a broker is away meanwhile; whether a
    partition has one replica less; whether it hits a broker whose root lies in an object store, None: any."""

    shortest: float
    longest: float
    takes_broker: bool
    takes_replica: bool
    is_stored: bool | None = None


# Brokers and controllers that are frozen wake up before their session ends, or, expired, after it. A store that hangs
# does so for less or for more than a session. An object store loses nothing that it has acknowledged.
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
}


@dataclass(frozen=True)
class Fault:
    """What happens, at which second of the soak at the earliest, and how long it lasts.

    `brokers` are all of them in a random order: the first is the one that is hit, and the order is the one in which a
    partition is reassigned to them. `place` is where in the list of partitions it happens, and `extent` how much of a
    log is deleted, both from 0 to 1.
    """

    at_s: float
    kind: str
    lasts_s: float
    brokers: tuple[int, ...]
    place: float
    extent: float

    @property
    def broker(self) -> int:
        """The broker that is hit, if one is."""
        return self.brokers[0]

    @property
    def takes_broker(self) -> bool:
        """Whether a broker is away while it lasts."""
        return KINDS[self.kind].takes_broker

    @property
    def takes_replica(self) -> bool:
        """Whether a partition is left with two replicas for a while: all have to be in sync before."""
        return KINDS[self.kind].takes_replica


def plan_faults(
    seed: int, seconds: float, faults: int, brokers: Sequence[int], stored: int, kinds: Sequence[str] = tuple(KINDS)
) -> tuple[Fault, ...]:
    """Faults of these kinds in turn, each turn in an order of its own, spread evenly over the time.

    Each has an equal part of the time and begins in the first half of it. The root of the broker `stored` lies in an
    object store.
    """
    draw = random.Random(seed)
    part = seconds / max(faults, 1)
    turns = _turns(draw, kinds)
    return tuple(
        _fault(draw, next(turns), part * (number + draw.uniform(0, 0.5)), brokers, stored) for number in range(faults)
    )


def _turns(draw: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from draw.sample(list(kinds), len(kinds))


def _fault(draw: random.Random, kind: str, at: float, brokers: Sequence[int], stored: int) -> Fault:
    found = KINDS[kind]
    lasts = draw.uniform(found.shortest, found.longest)
    hit = draw.choice([b for b in brokers if found.is_stored in (None, b == stored)])
    others = draw.sample([b for b in brokers if b != hit], len(brokers) - 1)
    return Fault(round(at, 1), kind, round(lasts, 1), (hit, *others), draw.random(), draw.random())


def kinds_of(text: str) -> tuple[str, ...]:
    """Kinds of faults on the command line, with commas between them."""
    kinds = tuple(text.split(","))
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: it must be some of {','.join(KINDS)}")
    return kinds
