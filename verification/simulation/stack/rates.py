"""The probability of each fault in one run. Swarm testing: each seed draws its own rates and leaves some faults out, so
that some runs are full of faults that are rare in others."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakelog.replication.storage.delta.commit_format import INLINED_BYTES
from lakelog.replication.storage.delta.quorum_member import SLOTS_A_SEAL
from lakelog.replication.storage.log.segment import LEAST_BYTES

LOST, REFUSED, LATE, DIES_BEFORE, DIES_AFTER = "lost", "refused", "late", "dies before", "dies after"
OVERTAKEN, FROZEN, HANGS = "overtaken", "frozen", "hangs"
KILLED, STOPPED, LOSES_END, TORN, EMPTIED = "killed", "stopped", "loses its end", "torn", "emptied"
RESTORED, ASLEEP, LITTERED, DOUBLED = "restored", "asleep", "littered", "doubled"
OUTDATED, ASTRAY = "restored from before a recovery", "started on a cluster root that was recovered elsewhere"
OLDER, EMPTY, OTHERS = "an older cluster root", "an empty cluster root", "the cluster root of others"
COPIED, RECOVERED, FENCED = "copied", "a lost cluster root", "a cluster root recovered elsewhere"
LOST_TOGETHER = "a broker's root lost with the cluster root"
ROOT_AWAY, ROOT_HANGS, ROOT_FAILS = "one of three roots away", "one of three roots hangs", "one of three roots fails"
ROOT_EMPTIED, ROOT_RESTORED = "one of three roots emptied", "one of three roots restored"
ROOT_REPLACED = "one of three roots replaced"
OTHERS_VOTE = "one root gets two others"

_COMMITS = {
    LOST: 0.02, REFUSED: 0.01, LATE: 0.01, DIES_BEFORE: 0.004, DIES_AFTER: 0.006, OVERTAKEN: 0.08, FROZEN: 0.003,
    HANGS: 0.003,
}  # fmt: skip
_BROKERS = {
    KILLED: 3, STOPPED: 2, LOSES_END: 2, TORN: 1, EMPTIED: 1, RESTORED: 1, ASLEEP: 1, LITTERED: 0.5, DOUBLED: 1.5,
}  # fmt: skip
_FACTORS = 0, 1, 1, 3
_IN_FLIGHT = 5  # every fifth seed has several sends of a producer in flight
_RECOVERS, _RECOVERS_REST = 7, 3  # every seventh seed loses its cluster root at times
_COMPACTS, _COMPACTS_REST = 13, 5  # every thirteenth seed has a compacted topic
_RARE, _RARE_REST = 11, 10  # every eleventh seed has more kinds of faults, and sizes that copy row groups and files


@dataclass(frozen=True)
class Rates:
    """The probability of each fault, and some sizes.

    For each commit: `commits`. For each access to a file: `unavailable` (it fails), `outage` (it and all later ones to
    this root fail in this step), `hangs` (it fails after the time-out), `slow` (others run before it is answered). For
    each event: `breaks` (a broker has a fault, drawn from `brokers` by weight). For each pause of a producer:
    `interrupted`. For each step of a broker: `maintains` (it maintains its log).

    `skew`: the largest error of a process's wall clock, in seconds. `checkpoint_commits`: the number of commits after
    which a table's log is cleaned up. `padding`: bytes added to each record. `in_flight`: the sends that a producer
    begins before it waits for them. For each event: `cluster_roots` (another root lies at the address of the cluster
    root for a while), `recovers` (the cluster root is lost, and recovered from the brokers' roots) and `copies` (a
    producer is copied, and goes on twice). `min_isr`: the topic's `min.insync.replicas`. If one root may be missing, a
    broker's root is sometimes lost with the cluster root. `cluster_count`: the number of cluster roots. If there are
    several, one of them has a fault at an event by the rate `root_faults`, and `slots_a_seal` versions of a table have
    their votes deleted together. By the rate `grows` a cluster that was formatted with one root gets the others at an
    event; if that is 0, it is formatted with all. `row_group_bytes`: the least size of a row group, and
    `inlined_bytes`: the largest size of a file that lies in its commit. Small ones let row groups and files be copied
    that have few records.
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
    in_flight: int = 1
    cluster_roots: float = 0.0
    copies: float = 0.0
    recovers: float = 0.0
    min_isr: int = 1
    cluster_count: int = 1
    root_faults: float = 0.0
    grows: float = 0.0
    slots_a_seal: int = SLOTS_A_SEAL
    row_group_bytes: int = LEAST_BYTES
    inlined_bytes: int = INLINED_BYTES
    keys: int = 0  # of records, in a topic that is compacted; 0 if it is not
    padding: int = 900  # each record becomes a batch and a segment, so a leader may die between two


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
        in_flight=3 if seed % _IN_FLIGHT == 0 else 1,
        **_recovering(seed),
        **_rare(seed),
        **_compacted(seed),
    )


def drawn_with_roots(seed: int, count: int) -> Rates:
    """The rates of one seed for a cluster with so many roots. None of the faults is there that assume one root."""
    if count == 1:
        return drawn(seed)
    rng = random.Random(f"voting roots of {seed}")
    return replace(
        drawn(seed), recovers=0.0, cluster_roots=0.0, cluster_count=count,
        root_faults=rng.choice((0, 0.03, 0.1)), slots_a_seal=rng.choice((4, 20, SLOTS_A_SEAL)),
        grows=random.Random(f"one root of {seed} gets others").choice((0, 0, 0.05)),
    )  # fmt: skip


def _recovering(seed: int) -> dict[str, Any]:
    """What only every seventh seed has. It is drawn from a stream of its own."""
    if seed % _RECOVERS != _RECOVERS_REST:
        return {}
    return {"recovers": 0.05, "min_isr": random.Random(f"recovery in {seed}").choice((1, 2))}


def _rare(seed: int) -> dict[str, Any]:
    """What only every eleventh seed has. It is drawn from a stream of its own."""
    if seed % _RARE != _RARE_REST:
        return {}
    rng = random.Random(f"rare in {seed}")
    return {
        "cluster_roots": rng.choice((0, 0.005, 0.02)),
        "copies": rng.choice((0, 0.01)),
        "row_group_bytes": rng.choice((500, 2000)),
        "inlined_bytes": rng.choice((0, INLINED_BYTES)),
    }


def _compacted(seed: int) -> dict[str, Any]:
    """What only every thirteenth seed has. It is drawn from a stream of its own."""
    return {"keys": random.Random(f"keys of {seed}").choice((2, 6))} if seed % _COMPACTS == _COMPACTS_REST else {}
