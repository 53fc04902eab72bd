"""Errors that reach the user of Spark as one sentence, without the stack trace of a Python worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
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


@contextmanager
def _without_trace() -> Iterator[None]:
    try:
        yield
    except LakelogException:
        os.environ[_HIDE] = "1"
        raise
