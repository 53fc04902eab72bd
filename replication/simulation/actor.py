"""Who acts: a thread of a broker, a producer, a reader, a controller. Its work is a generator; a step is one `next`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from lakelog.replication.simulation.events import AGAIN, LATE, LOST, AnswerLost, Event
from lakelog.replication.simulation.stage import UNKNOWN, WON, Stage
from lakelog.replication.simulation.tables import VersionedTable

# A step ends at each `yield`: between two of them others may do whatever they like, or the process may end.
Work: TypeAlias = Generator[None, None, None]
Decide: TypeAlias = Callable[[int, Any], Any]
Outcoming: TypeAlias = Generator[None, None, Any]  # the answer to a step, which takes steps itself
Handler: TypeAlias = Callable[[Any], Outcoming]


class Actor:
    """Something that takes steps. What it holds is gone when it is."""

    def __init__(self, world: Stage, name: str) -> None:
        self.world = world
        self.name = name
        self.turn = Event(name)
        self.is_paused = False
        self.is_about_to_commit: VersionedTable[Any] | None = None
        self._last_step = world.step
        self._answers: dict[str, int] = {}
        self._work = self.work()

    def work(self) -> Work:
        """All steps of this actor, one after the other, without end."""
        raise TypeError(f"{type(self).__name__} does not say what it does")

    def take(self, turn: Event) -> None:
        """One step."""
        self.turn = turn
        next(self._work)
        self._last_step = self.world.step

    def stop(self) -> None:
        """The actor is gone, in the middle of whatever it was doing."""
        self._work.close()

    def say(self, words: str, *facts: object) -> None:
        """What this step has done, for who reads the history."""
        self.world.say(self.name, words, *facts)

    def look(self, table: VersionedTable[Any], may_repeat: bool = True) -> tuple[int, Any]:
        """Reads a table: its newest version, or, when the answer has taken its time, one that was newest at some moment
        since this actor's last step. An answer that comes again is the one before.

        Raises AnswerLost when there is no answer.
        """
        version, fault = table.newest, self.turn.fault
        if fault == LOST:
            self.say("reads %s: no answer", table.name)
            raise AnswerLost
        if fault == LATE:
            moment = self._last_step + self.turn.salt % (self.world.step - self._last_step + 1)
            version = table.version_at(moment)
        elif fault == AGAIN and may_repeat:
            version = self._answers.get(table.name, version)
        self._answers[table.name] = version
        self.say("reads %s, version %d of %d", table.name, version, table.newest)
        return version, table.at(version)

    def carry_out(self, work: Generator[Any, Any, Any], handlers: Mapping[type, Handler]) -> Outcoming:
        """Carries out a shipped round, as `protocol.rounds.carry_out` does; a handler may take several turns."""
        return carried_out(work, lambda step: handlers[type(step)](step))

    def transact(self, table: VersionedTable[Any], decide: Decide, why: str) -> Generator[None, None, int | None]:
        """Looks, decides and commits at exactly the version looked at, until it has won or there is nothing to do.

        Answers the version committed, None if nothing was to be done. A commit without an answer is decided anew on
        what is then found, or given up. Raises what `decide` raises, and AnswerLost.
        """
        while True:
            yield
            version, state = self.look(table, may_repeat=False)
            change = decide(version, state)
            if change is None:
                return None
            self.is_about_to_commit = table
            yield
            self.is_about_to_commit = None
            outcome = self.world.commit(self, table, version, change, why)
            if outcome == WON or (outcome == UNKNOWN and not self.world.rules.unknown_is_asked):
                return version + 1
            if outcome == UNKNOWN and self.turn.salt % 3 == 0:
                raise AnswerLost


def carried_out(work: Generator[Any, Any, Any], carry: Callable[[Any], Generator[Any, Any, Any]]) -> Any:
    """A round whose steps are carried out by `carry`, itself a generator; what that yields, this yields."""
    answer, error = None, None
    while True:
        try:
            step = work.throw(error) if error else work.send(answer)
        except StopIteration as end:
            return end.value
        try:
            answer, error = (yield from carry(step)), None
        except Exception as failed:
            error = failed
