"""The world as its actors see it: they read its tables, commit to them, and are seen by the checker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from lakelog.verification.simulation.history_checker import HistoryChecker
from lakelog.verification.simulation.history_events import DROPPED, LANDED, Event
from lakelog.verification.simulation.rules import Rules
from lakelog.verification.simulation.simulated_tables import Metadata, SimulatedLogChange, VersionedTable, replay
from lakelog.verification.simulation.world_state import WorldSettings, WorldState

WON, OVERTAKEN, UNKNOWN = "won", "overtaken", "unknown"


class Committer(Protocol):
    """An actor that commits. Its `turn` has the fault of the commit."""

    turn: Event

    def say(self, words: str, *facts: object) -> None:
        """A line of the history."""


class Stage(WorldState, ABC):
    """The state of a world, the commits to it, and its checker."""

    def __init__(self, setting: WorldSettings, rules: Rules) -> None:
        super().__init__(setting, rules)
        self.checker = HistoryChecker(self)

    @abstractmethod
    def live(self) -> set[int]:
        """The brokers that are at work."""

    @abstractmethod
    def is_controlled(self) -> bool:
        """Whether a controller is at work."""

    def commit(self, actor: Committer, table: VersionedTable[Any], expected: int, change: Any, why: str) -> str:
        """Compare-and-set. The checker sees every commit that landed, even if the actor gets an error."""
        if actor.turn.fault == DROPPED:
            actor.say("commits to %s (%s): never arrives, and gets no answer", table.name, why)
            return UNKNOWN
        before = table.at(table.newest)
        is_log = isinstance(change, SimulatedLogChange)
        if expected != table.newest:
            actor.say("commits to %s (%s): overtaken, the newest version is %d", table.name, why, table.newest)
            return OVERTAKEN
        if is_log:
            self.records.update({batch.segment: batch.values for batch in change.adds})
        after = replay(before, change) if is_log else change
        table.commit(expected, after, self.step, change if is_log else None)
        lost = actor.turn.fault == LANDED
        suffix = ", and gets no answer" if lost else ""
        actor.say("commits version %d of %s (%s)%s", table.newest, table.name, _words(before, after, why), suffix)
        self.checker.check_commit(table, before, after, change)
        return UNKNOWN if lost else WON


def _words(before: Any, after: Any, why: str) -> str:
    """What a commit is for; of the metadata, what it makes of each partition."""
    if not isinstance(after, Metadata) or after.partitions == before.partitions:
        return why
    changed = [r for p, r in after.partitions.items() if before.partitions.get(p) != r]
    words = [f"{r.topic_id_partition} leader {r.leader}@{r.leader_epoch} ISR {r.isr} of {r.replicas}" for r in changed]
    removed = [f"{p} removed" for p in before.partitions if p not in after.partitions]
    return "; ".join([*words, *removed])
