"""Runs a round as a broker does: each step gets an answer, or the error that a test has prepared for its type."""

from collections.abc import Callable
from typing import Any

from replication.protocol.steps import Round, Step


class Rounds:
    """`steps`: what the last round has yielded. `fails`: errors by the type of the step that meets them."""

    def __init__(self, answer: Callable[[Step], Any]) -> None:
        self.steps: list[Step] = []
        self.fails: dict[type, Exception] = {}
        self._answer = answer

    @property
    def kinds(self) -> list[type]:
        return [type(step) for step in self.steps]

    def run(self, work: Round[Any]) -> Any:
        answer, error = None, None
        self.steps = []
        while True:
            try:
                step = work.throw(error) if error else work.send(answer)
            except StopIteration as end:
                return end.value
            self.steps.append(step)
            error = self.fails.get(type(step))
            answer = None if error else self._answer(step)
