"""How likely each fault is in one run. Swarm testing: each seed draws rates of its own, and leaves some faults out, so
that some runs are full of what is rare in others."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

LOST, REFUSED, LATE, DIES_BEFORE, DIES_AFTER = "lost", "refused", "late", "dies before", "dies after"
OVERTAKEN, FROZEN, HANGS = "overtaken", "frozen", "hangs"
KILLED, STOPPED, LOSES_END, TORN, EMPTIED = "killed", "stopped", "loses its end", "torn", "emptied"
RESTORED, ASLEEP, LITTERED, DOUBLED = "restored", "asleep", "littered", "doubled"

_COMMITS = {
    LOST: 0.02, REFUSED: 0.01, LATE: 0.01, DIES_BEFORE: 0.004, DIES_AFTER: 0.006, OVERTAKEN: 0.08, FROZEN: 0.003,
    HANGS: 0.003,
}  # fmt: skip
_BROKERS = {
    KILLED: 3, STOPPED: 2, LOSES_END: 2, TORN: 1, EMPTIED: 1, RESTORED: 1, ASLEEP: 1, LITTERED: 0.5, DOUBLED: 1.5,
}  # fmt: skip
_FACTORS = 0, 1, 1, 3


@dataclass(frozen=True)
class Rates:
    """How likely each fault is.

    `commits`: of each commit. `unavailable`, `outage` and `hangs`, of each look at a file: that it fails, alone or with
    all that follow, or after a long time. `breaks`: that a fault of a broker is the next step, of those in `brokers` by
    their weights. `interrupted`: of each pause of a producer. `maintains`: of each step of a broker. `padding`: bytes
    of each record. `slow`: of each look, that others go on before it is answered. `skew`: seconds that the wall clock
    of a process is off by at most. `checkpoint_commits`: after so many commits a table's log is cleaned up.
    """

    commits: Mapping[str, float] = field(default_factory=lambda: dict(_COMMITS))
    brokers: Mapping[str, float] = field(default_factory=lambda: dict(_BROKERS))
    unavailable: float = 0.001
    outage: float = 0.0007
    hangs: float = 0.0002
    breaks: float = 0.06
    interrupted: float = 0.004
    maintains: float = 0.05
    slow: float = 0.002
    skew: float = 3600.0
    checkpoint_commits: int = 100
    padding: int = 900  # so that each record is a batch of its own, and a segment: a leader may be lost between two


def drawn(seed: int) -> Rates:
    """The rates of one seed."""
    rng, usual = random.Random(f"rates of {seed}"), Rates()
    brokers = {fault: weight * rng.choice(_FACTORS) for fault, weight in usual.brokers.items()}
    return replace(
        usual,
        commits={fault: rate * rng.choice(_FACTORS) for fault, rate in usual.commits.items()},
        brokers=brokers if any(brokers.values()) else usual.brokers,
        unavailable=usual.unavailable * rng.choice(_FACTORS),
        outage=usual.outage * rng.choice(_FACTORS),
        hangs=usual.hangs * rng.choice(_FACTORS),
        breaks=usual.breaks * rng.choice((0.5, 1, 2)),
        interrupted=rng.choice((0, 0.004, 0.05)),
        maintains=rng.choice((0.02, 0.05, 0.2)),
        padding=rng.choice((900, 900, 900, 200_000)),
        slow=usual.slow * rng.choice(_FACTORS),
        skew=rng.choice((0, 3600, 200_000)),
        checkpoint_commits=rng.choice((6, 20, 100)),
    )
