"""A broker ends with its Spark.

Python outlives a killed JVM, and commits by delta-rs need none: a broker without streams would go on as leader.
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
    """Whether the JVM of this process has died. Under plain spark-submit it is the parent, and another process takes a
    dead parent's place."""
    process: Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return process.poll() is not None if process else os.getppid() != _PARENT


def pass_while_spark_runs(spark: SparkSession, broker_id: int, pause_point: PausePoint) -> None:
    """Passes through the pause point of a broker. If its JVM has died or its session was stopped, it first kills the
    broker, which then writes nothing more and raises BrokerKilled here.

    A verb ends its whole process with the JVM; in a notebook only the brokers end, for the kernel holds the work of its
    user.
    """
    if spark.sparkContext._jsc is None or has_jvm_died():
        logger.error("broker %d stops: its Spark has ended", broker_id)
        pause_point.kill()
    pause_point.pass_through()
