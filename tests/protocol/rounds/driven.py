"""Runs a round as a broker does. Each step gets an answer, or the error that the test prepared for its type."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from lakelog.replication.protocol.rounds.carry_out import Round, carry_out


class Rounds:
    """`steps`: the steps that the last round yielded. `fails`: the errors to raise, by type of step."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.steps: list[Any] = []
        self.fails: dict[type, Exception] = {}
        self._answer = answer

    @property
    def kinds(self) -> list[type]:
        return [type(step) for step in self.steps]

    def run(self, work: Round[Any, Any]) -> Any:
        self.steps = []
        return carry_out(work, defaultdict(lambda: self._carry_out))

    def _carry_out(self, step: Any) -> Any:
        self.steps.append(step)
        if type(step) in self.fails:
            raise self.fails[type(step)]
        return self._answer(step)
