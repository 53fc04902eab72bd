"""Checks that a Spark session can run a broker: once, at the start, before anything is written. Later it ends a broker
whose Spark has ended.

Without the check a broker would register and lead, while its own fetchers fail again and again.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from pathlib import Path
from shutil import which
from subprocess import Popen
from sys import executable
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.server.executors import TRACEBACK, ExecutorsFailed, error_line, is_local, on_executors
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.storage.delta.spark_delta import check_delta

logger = logging.getLogger(__name__)

_ERROR_LINE = re.compile(r"(?:^[:\s]*|: )(?:\w+\.)*(\w+(?:Error|Exception): .+)$", re.MULTILINE)
_TOO_SLOW = "Python worker failed to connect back"
_PATIENCE_SECONDS = 120.0  # a container may have to start first
_PARENT = os.getppid()

_checked: WeakSet[SparkContext] = WeakSet()
_checking = threading.Lock()

_PARENT = os.getppid()


def check_spark(spark: SparkSession) -> None:
    """Checks that the session can read Delta tables, that it has executors, and that its Python workers can import
    Lakelog, once for each Spark application. Raises InvalidConfigurationException with one sentence on what to
    set."""
    with _checking:
        context = spark.sparkContext
        if context not in _checked:
            check_delta(spark)
            _check_workers(spark)
            if not is_local(spark):
                _check_executors(spark)
            _checked.add(context)


def _check_workers(spark: SparkSession) -> None:
    """Makes a worker load a source of Lakelog. Spark plans it without a task, so a worker that fails leaves no stack
    trace in the log. On a busy machine a worker may need more than the 10 s that Spark waits, so it gets three
    tries."""
    for last in (False, False, True):
        try:
            load_probe(spark.newSession())
        except Exception as error:  # Spark's and py4j's: the worker failed, or could not be started
            if last or _TOO_SLOW not in str(error):
                raise InvalidConfigurationException(_refusal(spark.sparkContext.pythonExec, str(error))) from None
        else:
            return


class _Probe(DataSource):
    """A source without rows. Spark pickles it by its name, so a worker has to import this module."""

    @classmethod
    def name(cls) -> str:
        return "lakelog_probe"

    def schema(self) -> str:
        return "nothing INT"


def load_probe(spark: SparkSession) -> None:
    """Makes a worker of this session load the source. Raises an error of Spark."""
    spark.dataSource.register(_Probe)
    spark.read.format(_Probe.name()).load()


def _check_executors(spark: SparkSession) -> None:
    """Runs one task, which imports Lakelog and all that it needs. On other machines that may not be installed."""
    try:
        on_executors(spark, _run, [0], _PATIENCE_SECONDS)
    except ExecutorsFailed as error:
        raise InvalidConfigurationException(_refusal_of_executors(spark.sparkContext.pythonExec, error)) from None


def _run(_: int) -> None:
    """A task. Spark pickles it by its name, so a worker has to import this module."""


def _refusal(python: str, error: str) -> str:
    return (
        f"Spark's Python workers ({python}) cannot run Lakelog: {_reason(error)}; set {_setting(python)} before "
        "Spark starts, or let lakelog.spark_session() start it"
    )


def _refusal_of_executors(python: str, error: ExecutorsFailed) -> str:
    if error.__cause__ is None:
        return (
            f"Spark has given this application no executor for {_PATIENCE_SECONDS:.0f} s: each broker needs a free "
            "core of its cluster; limit every application with --total-executor-cores (standalone) or --num-executors"
        )
    return (
        f"Spark's executors cannot run Lakelog: {_reason(str(error.__cause__))}; on their machines {python} must be a "
        "Python of the driver's version with Lakelog's packages: set PYSPARK_PYTHON before Spark starts"
    )


def _reason(error: str) -> str:
    """The error of Python or of Java that a text of Spark is about."""
    found = _ERROR_LINE.search(error)
    first = found[1] if found else error.strip().partition("\n")[0]
    return (error_line(error) if TRACEBACK in first else first).rstrip(".")


def _setting(python: str) -> str:
    """The setting to change: the interpreter if it is not the driver's, else the path to the package."""
    found, own = Path(which(python) or python), Path(executable)
    if found.parent == own.parent and found.resolve() == own.resolve():
        return f"PYTHONPATH={Path(__file__).parents[3]}"
    return f"PYSPARK_PYTHON={own}"


def has_jvm_died() -> bool:
    """Whether the JVM of this process has died. Under plain spark-submit the JVM is the parent process: once it has
    died, the parent's id changes."""
    process: Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return process.poll() is not None if process else os.getppid() != _PARENT


def pass_while_spark_runs(spark: SparkSession, broker_id: int, pause_point: PausePoint) -> None:
    """Passes through a broker's pause point. If the JVM has died or the session was stopped, it first kills the broker:
    the broker writes nothing more, and this raises BrokerKilled.

    A command ends its whole process with the JVM. In a notebook only the brokers end, because the kernel holds the
    user's work.
    """
    if spark.sparkContext._jsc is None or has_jvm_died():
        _kill(broker_id, pause_point)
    pause_point.pass_through()


def kill_if_stopped(spark: SparkSession, broker_id: int, pause_point: PausePoint) -> None:
    """Kills a broker whose application was stopped by the JVM, as when a master gives it up after ten executors have
    failed in a row. It asks the JVM, which may hang, so no thread calls it that does the duties of a leader."""
    context = spark.sparkContext._jsc
    if context is not None and context.sc().isStopped():
        _kill(broker_id, pause_point)


def _kill(broker_id: int, pause_point: PausePoint) -> None:
    logger.error("broker %d stops: its Spark has ended", broker_id)
    pause_point.kill()
