"""Times the steps of rounds, the commits and the written segments of this process, without a line in what ships.

A round hands each step to a handler, so the handlers are the place to time from outside: while a `Tracer` is entered,
`carry_out` and a few functions are replaced by ones that note their start and end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from typing import Any
from unittest.mock import patch

from lakelog.replication.protocol.rounds import carry_out as rounds
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.log import new_batches
from lakelog.replication.storage.log.piece_writer import write_pieces

COMMIT, WRITE = "commit", "write segment"

_carry_out = rounds.carry_out


@dataclass(frozen=True)
class Span:
    """A call: its start and end in seconds since the epoch, its thread, and the id of the span that it is part of.

    `step` is the step of a round, if the span is one; `table` and `why` are those of a commit.
    """

    id: int
    parent: int
    name: str
    thread: str
    start: float
    end: float
    step: Any = None
    table: str = ""
    why: str = ""

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end - self.start


@dataclass
class Tracer:
    """Collects spans while it is entered. Every thread of this process adds to `spans`, at the end of each call."""

    spans: list[Span] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _open: threading.local = field(default_factory=threading.local)

    @contextmanager
    def span(self, name: str, **about: Any) -> Iterator[None]:
        """Notes the time of the block. A block within it on the same thread is a part of it."""
        own, parent = next(self._numbers), getattr(self._open, "span", 0)
        self._open.span, start = own, time.time()
        try:
            yield
        finally:
            end, self._open.span = time.time(), parent
            self.spans.append(Span(own, parent, name, threading.current_thread().name, start, end, **about))

    @contextmanager
    def tracing(self) -> Iterator[Tracer]:
        """Replaces what it times, until the block ends. A round that runs meanwhile stays as it began."""
        with ExitStack() as stack:
            for module in [m for name, m in list(sys.modules.items()) if name.startswith("lakelog.")]:
                if getattr(module, "carry_out", None) is _carry_out:
                    stack.enter_context(patch.object(module, "carry_out", self._carry_out))
            stack.enter_context(patch.object(DeltaLog, "commit", self._traced_commit(DeltaLog.commit)))
            stack.enter_context(patch.object(new_batches, "write_pieces", self._traced_write(write_pieces)))
            yield self

    def _carry_out(
        self, work: Any, handlers: Any, deciding: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Any:  # fmt: skip
        traced = {step: self._traced_step(handler) for step, handler in handlers.items()}
        with self.span(work.__qualname__):
            return _carry_out(work, traced, deciding)

    def _traced_step(self, handler: rounds.Handler) -> rounds.Handler:
        def traced(step: Any) -> Any:
            inner = getattr(step, "step", step)  # a producer's rounds share a thread, which hands on the steps of each
            with self.span(type(inner).__name__, step=inner):
                return handler(step)

        return traced

    def _traced_commit(self, commit: Callable[..., int]) -> Callable[..., int]:
        @wraps(commit)
        def traced(log: DeltaLog, cause: Any, *args: Any, **options: Any) -> int:
            with self.span(COMMIT, table=log.root.uri, why=str(cause.get("why", ""))):
                return commit(log, cause, *args, **options)

        return traced

    def _traced_write(self, write: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(write)
        def traced(*args: Any, **options: Any) -> Any:
            with self.span(WRITE):
                return write(*args, **options)

        return traced
