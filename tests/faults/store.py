"""A store that has faults: it answers 503, hangs, loses answers, lands commits late, lets a process die or stand still
in the middle of a write, and loses or tears the ends of tables in a power cut. Which ones, and when, a seeded generator
tells.

The faults are put into `StorageRoot` and `DeltaLog`, below all that decides what to make of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from replication.errors import KafkaStorageException, LakelogException
from replication.server.gate import BrokerKilled
from replication.storage.commit import commit_name, is_commit, read_commit
from replication.storage.delta_log import CommitConflict, CommitUnknown, DeltaLog
from replication.storage.filesystem import TIMEOUT_MS, StorageRoot
from tests.faults.rates import DIES_AFTER, DIES_BEFORE, FROZEN, HANGS, LATE, LOST, OVERTAKEN, REFUSED, Rates

_FROZEN_SECONDS = 3, 8, 15
_READS = "read", "read_buffer", "stamps", "_infos"


class Actor(Protocol):
    """A process that uses the store. `outage`: the root that it cannot reach until its step ends. `keeps_records`:
    whether it is a broker."""

    name: str
    outage: str | None
    keeps_records: bool

    @property
    def is_dead(self) -> bool:
        """Whether it has been killed: then it writes and reads nothing more."""

    def die(self) -> bool:
        """Ends it at once, if it may be ended now; tells whether it has."""


class FaultyStore:
    """The store of one world. `actor` tells who uses it now, None if it is the test; `others` lets others go on for so
    many seconds, one of them at least.

    `is_careful`: as long as a broker that has lost records still counts, no other is kept from the store.
    """

    def __init__(
        self, rng: random.Random, rates: Rates, actor: Callable[[], Actor | None], others: Callable[[float], None]
    ) -> None:
        self._rng = rng
        self._rates = rates
        self._actor = actor
        self._others = others
        self._late: list[tuple[StorageRoot, Callable[[], None]]] = []
        self.has_faults, self.is_careful = False, False
        self.counts: dict[str, int] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on every root and table of this process has these faults."""
        for name in (*_READS, "write"):
            patch.setattr(StorageRoot, name, self._failing(getattr(StorageRoot, name)))
        patch.setattr(DeltaLog, "move", self._moving(DeltaLog.move))
        patch.setattr(DeltaLog, "commit", self._committing(DeltaLog.commit))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def looked(root: StorageRoot, *args: Any) -> Any:
            self._reach(root)
            return real(root, *args)

        return looked

    def _moving(self, real: Callable[[DeltaLog], None]) -> Callable[[DeltaLog], None]:
        def moved(log: DeltaLog) -> None:
            self._reach(log.root)
            real(log)

        return moved

    def _reach(self, root: StorageRoot) -> None:
        """Raises KafkaStorageException where the store does not answer."""
        actor = self._actor()
        if actor is None:
            return
        if actor.is_dead:
            raise BrokerKilled
        if not self.has_faults or self.is_careful:
            return
        luck, rates = self._rng.random(), self._rates
        if luck < rates.outage and actor.outage is None:
            actor.outage = _owner(root)
        is_away = actor.outage is not None and root.uri.startswith(actor.outage)
        if is_away or luck < rates.outage + rates.unavailable:
            self.count("503")
            raise KafkaStorageException(f"{root.uri}: 503 Slow Down")
        if luck > 1 - rates.hangs:
            self.count("hangs on a look")
            self._stand_still(actor, TIMEOUT_MS / 1000)
            raise KafkaStorageException(f"{root.uri}: timed out")

    def _stand_still(self, actor: Actor, seconds: float) -> None:
        self._others(seconds)
        if actor.is_dead:
            raise BrokerKilled

    def _committing(self, real: Callable[..., int]) -> Callable[..., int]:
        def committed(log: DeltaLog, *args: Any, **options: Any) -> int:
            actor = self._actor()
            try:
                self._reach(log.root)
            except KafkaStorageException as error:
                raise CommitUnknown(str(error)) from error
            fault = self._choose(actor) if actor is not None and self.has_faults else None
            if fault is None or actor is None:
                return real(log, *args, **options)
            return self._with(fault, actor, log, lambda at: real(at, *args, **options))

        return committed

    def _choose(self, actor: Actor) -> str | None:
        rates = self._rates.commits
        (chosen,) = self._rng.choices([*rates, None], [*rates.values(), 1 - sum(rates.values())])
        harmless = (LOST,) if actor.keeps_records else (LOST, OVERTAKEN)
        return None if self.is_careful and chosen not in harmless else chosen

    def _with(self, fault: str, actor: Actor, log: DeltaLog, commit: Callable[[DeltaLog], int]) -> int:
        self.count(fault)
        if fault in (OVERTAKEN, FROZEN):
            self._stand_still(actor, 0 if fault == OVERTAKEN else self._rng.choice(_FROZEN_SECONDS))
        if fault == HANGS:
            self._hang(actor, log, commit)
        if fault == LATE:
            self._put_aside(log, commit)
            actor.outage = actor.outage or _owner(log.root)
        if fault == DIES_BEFORE and actor.die():
            raise BrokerKilled
        if fault in (REFUSED, LATE):
            raise CommitUnknown(f"{log.root.uri}: 503 Slow Down")
        version = commit(log)
        if fault == DIES_AFTER and actor.die():
            raise BrokerKilled
        if fault == LOST:
            raise CommitUnknown(f"{log.root.uri}: connection reset")
        return version

    def _hang(self, actor: Actor, log: DeltaLog, commit: Callable[[DeltaLog], int]) -> None:
        """No answer comes before the deadline. The commit has landed, or lands later."""
        if self._rng.random() < 0.5:
            commit(log)
        else:
            self._put_aside(log, commit)
        self._stand_still(actor, TIMEOUT_MS / 1000)
        raise CommitUnknown(f"{log.root.uri}: timed out")

    def _put_aside(self, log: DeltaLog, commit: Callable[[DeltaLog], int]) -> None:
        """The commit lands later, at the version that it was meant for, if nobody has made that one by then."""
        root, expected, table = log.root, log.version, log.table_id

        def lands() -> None:
            try:
                again = DeltaLog.open(root)
                if (again.version, again.table_id) == (expected, table):
                    commit(again)
            except (CommitConflict, CommitUnknown, LakelogException):
                return

        self._late.append((root, lands))

    def land(self, all_of_them: bool = False) -> None:
        """What is late lands now: one commit, or all of them."""
        while self._late:
            _, lands = self._late.pop(0)
            lands()
            if not all_of_them:
                return

    def lose_late(self, root: StorageRoot) -> None:
        """What was on its way to a root does not arrive any more."""
        self._late = [(to, lands) for to, lands in self._late if not to.uri.startswith(f"{root.uri}/")]

    def count(self, what: str) -> None:
        """Notes that a fault has occurred."""
        self.counts[what] = self.counts.get(what, 0) + 1

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Without faults."""
        before, self.has_faults = self.has_faults, False
        try:
            yield
        finally:
            self.has_faults = before


def _owner(root: StorageRoot) -> str:
    """The root of the broker, or of the cluster, that a table belongs to: roots of a world lie side by side."""
    head, _, rest = root.uri.partition("/world/")
    return f"{head}/world/{rest.split('/')[0]}"


def lose_end(table: StorageRoot, count: int) -> int:
    """A power cut takes the last commits of a table, and the files that they have added, as if they had never been
    written. Not beyond a checkpoint, nor where files of what is left have been deleted. Answers how many it took."""
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
    """After a power cut the files that the last commits have added have their names and a part of their bytes. Answers
    which files."""
    return _cut(
        table, [f.name for version in _last_commits(table, count) for f in read_commit(table, version).adds], part
    )


def tear_commit(table: StorageRoot, part: float) -> list[str]:
    """After a power cut the last commit of a table has its name and a part of its bytes."""
    return _cut(table, [commit_name(version) for version in _last_commits(table, 1)], part)


def _cut(table: StorageRoot, names: list[str], part: float) -> list[str]:
    found = [(name, size) for name, size in zip(names, table.sizes(names), strict=True) if size]
    for name, size in found:
        os.truncate(table.path(name), int(size * part))
    return [name for name, _ in found]


def _last_commits(table: StorageRoot, count: int) -> list[int]:
    """The versions that a power cut may have taken: not those before a checkpoint, nor the first two."""
    names = table.child("_delta_log").list()
    versions = sorted(int(name[:20]) for name in names if is_commit(name))
    checkpoints = [int(name[:20]) for name in names if name[:20].isdigit() and not is_commit(name)]
    first = max([versions[0] + 1, *(version + 1 for version in checkpoints)])
    return [version for version in versions[len(versions) - count :] if version > first]
