"""Our code in a Python worker of Spark: an error reaches the user as one sentence, without a stack trace, and what the
worker has imported costs nothing after each task."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from lakelog.replication.errors import LakelogException

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")

# Spark's workers leave out the stack trace of their last error where this variable is set. They end with that error.
_HIDE = "SPARK_HIDE_TRACEBACK"


def plain_errors(call: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
    """The same function, for a worker of Spark: a LakelogException ends the worker without a stack trace. Others keep
    theirs."""

    @wraps(call)
    def plain(*given: Parameters.args, **named: Parameters.kwargs) -> Answer:
        with _without_trace():
            return call(*given, **named)

    return plain


def plain_iteration(found: Iterator[Answer]) -> Iterator[Answer]:
    """As `plain_errors`, for an iterator: an error while it is read ends the worker without a stack trace."""
    with _without_trace():
        yield from found


@cache
def keep_imports() -> None:
    """Leaves the modules of this worker out of garbage collection. Spark collects after each task, and modules are most
    of what a worker has: that took a sixth of the workers' time in a batch read."""
    gc.freeze()


@contextmanager
def _without_trace() -> Iterator[None]:
    keep_imports()
    try:
        yield
    except LakelogException:
        os.environ[_HIDE] = "1"
        raise
