"""A store with faults: it answers 503, hangs, loses answers and lands commits late, and processes die or freeze in the
middle of a write. A seeded generator chooses the faults.

The faults are in the store in memory, below `StorageRoot` and `DeltaLog`, so all of `storage` meets them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from lakelog.replication.server.periodic_task import BrokerKilled
from lakelog.replication.storage.delta.commit_format import commit_name, is_commit, read_commit
from lakelog.replication.storage.delta.storage_root import TIMEOUT_MS, StorageRoot
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack.rates import (
    DIES_AFTER,
    DIES_BEFORE,
    FROZEN,
    HANGS,
    LATE,
    LOST,
    OVERTAKEN,
    REFUSED,
    Rates,
)

_SENT_AGAIN = 0.5
_FROZEN_SECONDS = 3, 8, 15
ACCESSES_OF_A_STEP = 50_000  # a step with more counts as endless


class StoreUser(Protocol):
    """A process that uses the store. `outage`: the root that it cannot reach until its step ends. `keeps_records`:
    whether it is a broker. `accesses`: how often it has used the store in this step."""

    name: str
    outage: str | None
    keeps_records: bool
    accesses: int

    @property
    def is_dead(self) -> bool:
        """Whether it has been killed. Then it reads and writes nothing more."""

    def die(self) -> bool:
        """Ends it at once if that is allowed now, and returns whether it has ended. A producer raises Interrupted."""

    def may_write(self, uri: str) -> bool:
        """Whether this process may write or delete the file with this URI."""


class FaultyStore:
    """The faults of one store. `actor` returns the process that uses it now; None is the simulation itself, which meets
    no faults. `others` lets at least one other process run, for so many seconds.

    `is_careful`: only harmless faults occur. It is set while a broker that has lost records is still in an ISR.
    """

    def __init__(
        self, rng: random.Random, rates: Rates, actor: Callable[[], StoreUser | None], others: Callable[[float], None]
    ) -> None:
        self._rng = rng
        self._rates = rates
        self._actor = actor
        self._others = others
        self._late: list[tuple[str, Callable[[], object]]] = []
        self.has_faults, self.is_careful = False, False
        self.reach: Callable[[str], None] = lambda _: None  # called before each access of a process, and may raise
        self.accesses = 0
        self.counts: dict[str, int] = {}

    def read(self, uri: str) -> None:
        """Raises OSError if the store fails, BrokerKilled if the process is dead, Violation if its step is endless."""
        actor = self._actor()
        if actor is None:
            return
        self.accesses += 1
        if actor.is_dead:
            raise BrokerKilled
        actor.accesses += 1
        if actor.accesses > ACCESSES_OF_A_STEP:
            raise Violation("every_loop_ends", f"{actor.name} reads {uri}: access {actor.accesses} of one step")
        self.reach(uri)
        if not self.has_faults or self.is_careful:
            return
        luck, rates = self._rng.random(), self._rates
        if luck < rates.outage and actor.outage is None:
            actor.outage = _owner(uri)
        is_away = actor.outage is not None and uri.startswith(actor.outage)
        if is_away or luck < rates.outage + rates.unavailable:
            self.count("503")
            raise OSError(f"{uri}: 503 Slow Down")
        if luck > 1 - rates.hangs:
            self.count("hangs on an access")
            self._stand_still(actor, TIMEOUT_MS / 1000)
            raise OSError(f"{uri}: timed out")
        if luck > 1 - rates.hangs - rates.slow:
            self._stand_still(actor, 0)

    def _stand_still(self, actor: StoreUser, seconds: float) -> None:
        self._others(seconds)
        if actor.is_dead:
            raise BrokerKilled

    def write(self, uri: str, put: Callable[[], None]) -> None:
        """Writes the file, fails, or loses the answer. Raises as `read`, and Violation if the file is another's."""
        self._check_owner(uri)
        self.read(uri)
        actor = self._actor()
        fault = self._choose(actor) if actor is not None and self.has_faults and not self.is_careful else None
        if actor is not None and fault == DIES_BEFORE:
            self._die(actor, fault)
        put()
        if actor is not None and fault == DIES_AFTER:
            self._die(actor, fault)
        if fault == LOST:
            self.count("lost answer to a file")
            raise OSError(f"{uri}: connection reset")

    def _die(self, actor: StoreUser, fault: str) -> None:
        """Ends the process if it may end now. Raises BrokerKilled, or Interrupted for a producer."""
        if actor.die():
            self.count(fault)
            raise BrokerKilled

    def _check_owner(self, uri: str) -> None:
        actor = self._actor()
        if actor is not None and not actor.may_write(uri):
            raise Violation("only_owners_write", f"{actor.name} writes {uri}")

    def commit(self, uri: str, put: Callable[[], bool]) -> bool:
        """Commits now, later or not at all. Returns whether the client learns that it was first. Raises as `write`."""
        self._check_owner(f"{uri}/{commit_name(0)}")
        self.read(uri)
        actor = self._actor()
        fault = self._choose(actor) if actor is not None and self.has_faults else None
        if fault is None or actor is None:
            return put()
        return self._with(fault, actor, uri, put)

    def _choose(self, actor: StoreUser) -> str | None:
        rates = self._rates.commits
        (chosen,) = self._rng.choices([*rates, None], [*rates.values(), 1 - sum(rates.values())])
        harmless = (LOST,) if actor.keeps_records else (LOST, OVERTAKEN)
        return None if self.is_careful and chosen not in harmless else chosen

    def _with(self, fault: str, actor: StoreUser, uri: str, put: Callable[[], bool]) -> bool:
        if fault not in (DIES_BEFORE, DIES_AFTER):
            self.count(fault)
        if fault in (OVERTAKEN, FROZEN):
            self._stand_still(actor, 0 if fault == OVERTAKEN else self._rng.choice(_FROZEN_SECONDS))
        if fault == HANGS:
            self._hang(actor, uri, put)
        if fault == LATE:
            self._late.append((uri, put))
            actor.outage = actor.outage or _owner(uri)
        if fault == DIES_BEFORE:
            self._die(actor, fault)
        if fault in (REFUSED, LATE):
            raise OSError(f"{uri}: 503 Slow Down")
        is_first = put()
        if fault == DIES_AFTER:
            self._die(actor, fault)
        if fault != LOST:
            return is_first
        if self._rng.random() < _SENT_AGAIN:
            return False  # without an answer the client sends again, and its own first commit refuses it
        raise OSError(f"{uri}: connection reset")

    def _hang(self, actor: StoreUser, uri: str, put: Callable[[], bool]) -> None:
        """The store does not answer before the deadline. The commit has landed, or lands later."""
        if self._rng.random() < 0.5:
            put()
        else:
            self._late.append((uri, put))
        self._stand_still(actor, TIMEOUT_MS / 1000)
        raise OSError(f"{uri}: timed out")

    def land(self, all_of_them: bool = False) -> None:
        """Lands one late commit, or all of them. A commit fails if another one has its version."""
        while self._late:
            _, put = self._late.pop(0)
            put()
            if not all_of_them:
                return

    def lose_late(self, root: StorageRoot) -> None:
        """Drops the late commits to a root."""
        self._late = [(to, put) for to, put in self._late if not to.startswith(f"{root.uri}/")]

    def count(self, what: str) -> None:
        """Notes that a fault has occurred."""
        self.counts[what] = self.counts.get(what, 0) + 1


def is_below(uri: str, roots: str) -> bool:
    """Whether a file lies in one of these roots, which are separated by commas."""
    return uri.startswith(tuple(f"{root}/" for root in roots.split(",")))


def _owner(uri: str) -> str:
    """The root of a broker or of the cluster that has this table. Roots are side by side in a store."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{'/'.join(rest.split('/')[:2])}"


def lose_end(table: StorageRoot, count: int) -> int:
    """Removes the last commits of a table and the files that they added. Returns how many commits. It stops before a
    checkpoint, and where files of the remaining version have been deleted."""
    lost = _last_commits(table, count)
    while lost and not all(table.exists(f.name) for f in read_commit(table, lost[0] - 1).adds):
        lost = lost[1:]
    for version in reversed(lost):
        added = read_commit(table, version).adds
        table.delete(commit_name(version))
        for file in added:
            table.delete(file.name)
    return len(lost)


def tear_end(table: StorageRoot, count: int, part: float) -> list[str]:
    """Leaves only a part of the bytes of the files that the last commits added. Returns their names."""
    names = [f.name for version in _last_commits(table, count) for f in read_commit(table, version).adds]
    return _tear(table, names, part)


def tear_commit(table: StorageRoot, part: float) -> list[str]:
    """Leaves only a part of the bytes of a table's last commit. Returns its name in a list."""
    return _tear(table, [commit_name(version) for version in _last_commits(table, 1)], part)


def _tear(table: StorageRoot, names: list[str], part: float) -> list[str]:
    found = [name for name in names if table.exists(name)]
    for name in found:
        content = table.read(name)
        table.write(name, content[: int(len(content) * part)])
    return found


def _last_commits(table: StorageRoot, count: int) -> list[int]:
    """The last versions that a power cut may affect: only those after a checkpoint, and not the first two."""
    names = table.child("_delta_log").list()
    versions = sorted(int(name[:20]) for name in names if is_commit(name))
    checkpoints = [int(name[:20]) for name in names if name[:20].isdigit() and not is_commit(name)]
    first = max([versions[0] + 1, *(version + 1 for version in checkpoints)])
    return [version for version in versions[max(0, len(versions) - count) :] if version > first]
