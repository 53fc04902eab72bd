"""Ends a broker when its Spark ends.

Python outlives a killed JVM, and delta-rs commits without one. So a broker without streams would go on as leader.
"""

from __future__ import annotations

import logging
import os
from subprocess import Popen

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakelog.replication.server.pause_point import PausePoint

logger = logging.getLogger(__name__)

_PARENT = os.getppid()


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
