"""Carries out the steps of a broker's rounds on its tables and in its memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from replication.errors import LakelogException
from replication.protocol.steps import Result, Round, Step
from replication.server.gate import Gate

Handler: TypeAlias = Callable[[Any], Any]


class StepExecutor:
    """What is done for each kind of step. A broker may be ended between any two of them.

    `lock` is that of the memory which rounds decide on: it is held while a round decides, and during no step.
    """

    def __init__(self, gate: Gate, lock: threading.RLock, handlers: Mapping[type[Step], Handler]) -> None:
        self._gate = gate
        self._lock = lock
        self._handlers = handlers

    def run(self, work: Round[Result]) -> Result:
        """Carries out a round to its end. An error of a step goes to the round; what it makes of none is raised."""
        answer: Any = None
        error: LakelogException | None = None
        while True:
            self._gate.pass_through()
            try:
                with self._lock:
                    step = work.throw(error) if error else work.send(answer)
            except StopIteration as end:
                return cast(Result, end.value)
            try:
                answer, error = self._handlers[type(step)](step), None
            except LakelogException as failed:
                error = failed
