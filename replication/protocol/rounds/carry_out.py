"""Runs rounds. A round is a generator that does no I/O: it yields each read and each write as a step, and receives the
answer or the error.

So a round reads top to bottom: read, decide, write. Between two steps its process may be killed, and others may commit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, TypeAlias, TypeVar, cast

Step = TypeVar("Step")
Result = TypeVar("Result")

# Yields steps, receives the answer or the error of each, and returns its result.
Round: TypeAlias = Generator[Step, Any, Result]
Handler: TypeAlias = Callable[[Any], Any]


def carry_out(
    work: Round[Step, Result], handlers: Mapping[type, Handler],
    deciding: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Result:  # fmt: skip
    """Runs a round to its end and returns its result.

    `handlers`: the function that carries out each type of step. `deciding`: a context that is entered while the round
    decides, and left for each step. An error of a step is thrown into the round; an error that the round does not catch
    is raised here. The round is closed at the end, so that it releases all it holds.
    """
    answer: Any = None
    error: Exception | None = None
    with closing(work):
        while True:
            with deciding():
                try:
                    step = work.throw(error) if error else work.send(answer)
                except StopIteration as end:
                    return cast(Result, end.value)
            try:
                answer, error = handlers[type(step)](step), None
            except Exception as failed:
                error = failed
