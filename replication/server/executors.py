"""Spark jobs of a broker whose executors are processes of their own.

Spark lets a job wait for executors without limit: the cluster may have no core left for the application, or may have
forgotten it. A broker must go on without them, so its jobs end with an error instead.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import dropwhile
from typing import TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from lakelog.replication.errors import LakelogException

T = TypeVar("T")
R = TypeVar("R")

_POLL_SECONDS = 1.0
_MOST = 400  # characters
_CAUSES = (": ", "Caused by: ")  # py4j's first line only names the call; Java's errors follow, the deepest one last
TRACEBACK = "Traceback (most recent call last):"


class ExecutorsFailed(LakelogException):
    """A task failed as often as Spark tries it, or Spark has no executor. The cause is Spark's error, if there is
    one."""


def is_local(spark: SparkSession) -> bool:
    """Whether the tasks of a session run in the driver: its master is `local[…]`."""
    return re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master or "") is not None


def has_executors(spark: SparkSession) -> bool:
    """Whether Spark has executors now. A local session never has."""
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) > 1  # one is the driver


def while_there_are_executors(spark: SparkSession, run: Callable[[], R], patience_seconds: float = 0.0) -> R:
    """Calls `run`, which runs Spark jobs, and returns its result.

    Raises ExecutorsFailed if a job fails, or if Spark has no executor, and then it cancels the jobs. Executors may take
    `patience_seconds` to come.
    """
    if not patience_seconds and not has_executors(spark):
        raise ExecutorsFailed("Spark has no executor")
    context, tag = spark.sparkContext, f"lakelog-{uuid.uuid4().hex}"
    results: list[R] = []
    errors: list[Exception] = []
    is_over = threading.Event()

    def work() -> None:
        try:
            context.addJobTag(tag)
            results.append(run())
        except Exception as error:  # Spark's and py4j's
            errors.append(error)
        finally:
            is_over.set()

    InheritableThread(target=work, name=tag, daemon=True).start()  # it ends with the query that this thread is of
    until = time.monotonic() + patience_seconds
    while not is_over.wait(_POLL_SECONDS):
        if time.monotonic() >= until and not has_executors(spark):
            context.cancelJobsWithTag(tag)
            raise ExecutorsFailed("Spark has no executor")
    if errors:
        raise ExecutorsFailed(error_line(errors[0])) from errors[0]
    return results[0]


def on_executors(
    spark: SparkSession, call: Callable[[T], R], items: Sequence[T], patience_seconds: float = 0.0
) -> list[R]:
    """Calls `call` with each item in a task of its own. Returns the results in the order of the items.

    Spark tries a task that fails again, as `spark.task.maxFailures` says. Raises ExecutorsFailed if it fails for good,
    or if Spark has no executor; then it cancels the job. Executors may take `patience_seconds` to come.
    """
    context = spark.sparkContext
    return while_there_are_executors(
        spark, lambda: context.parallelize(items, len(items)).map(call).collect(), patience_seconds
    )


def error_line(error: object) -> str:
    """An error in one line, for the log and the replica row, since Spark's errors hold plans and stack traces: the
    Python error at the end of a stack trace in the text, else Java's deepest cause, else the first line; at most
    400 characters of it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    trace = list(dropwhile(lambda line: TRACEBACK not in line, lines))[1:]
    raised = next((line for line in trace if not line[0].isspace()), None)
    causes = [line.removeprefix(start) for line in lines for start in _CAUSES if line.startswith(start)]
    line = (raised or next(reversed(causes), None) or next(iter(lines), None) or type(error).__name__).strip()
    return line if len(line) <= _MOST else f"{line[:_MOST]} …"
