"""The actors: broker threads, producers, readers, controllers. An actor's work is a generator; a step is one `next`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from lakelog.verification.simulation.history_events import AGAIN, LATE, LOST, AnswerLost, Event
from lakelog.verification.simulation.simulated_tables import VersionedTable
from lakelog.verification.simulation.stage import UNKNOWN, WON, Stage

# A step ends at each `yield`: between two of them others may do whatever they like, or the process may end.
Work: TypeAlias = Generator[None, None, None]
Decide: TypeAlias = Callable[[int, Any], Any]
Outcoming: TypeAlias = Generator[None, None, Any]  # returns the answer to a step, and takes steps itself
Handler: TypeAlias = Callable[[Any], Outcoming]


class Actor:
    """A participant that takes steps. Its memory ends with it."""

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
        """Yields after each step of this actor, without end."""
        raise TypeError(f"{type(self).__name__} does not define its work")

    def take(self, turn: Event) -> None:
        """Takes one step."""
        self.turn = turn
        next(self._work)
        self._last_step = self.world.step

    def stop(self) -> None:
        """Ends the actor in the middle of its work."""
        self._work.close()

    def say(self, words: str, *facts: object) -> None:
        """Adds a line about this step to the trace."""
        self.world.say(self.name, words, *facts)

    def read(self, table: VersionedTable[Any], may_repeat: bool = True) -> tuple[int, Any]:
        """Reads a table. Returns its newest version, or with a late answer a version that was the newest at some moment
        since this actor's last step. A repeated answer is the same as the one before.

        Raises AnswerLost if there is no answer.
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
        """Reads, decides and commits at exactly the version that was read, until it wins or there is nothing to do.

        Returns the committed version, None if there was nothing to do. After a commit without an answer it decides
        again on the new state, or gives up. Raises what `decide` raises, and AnswerLost.
        """
        while True:
            yield
            version, state = self.read(table, may_repeat=False)
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
    """Runs a round. The generator `carry` carries out its steps, and this function yields what `carry` yields."""
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
