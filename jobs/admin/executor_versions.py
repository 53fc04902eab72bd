"""What the Python workers of Spark's executors have: their version of Python, and those of Lakelog's packages."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from lakelog.jobs.admin.doctor_findings import Executor
from lakelog.jobs.admin.doctor_probes import installed, python_version
from lakelog.replication.server.executors import on_executors
from lakelog.replication.server.spark_check import check_spark

_PATIENCE_SECONDS = 120.0  # a container may have to start first
_MOST_TASKS = 64


def executors_of(spark: SparkSession, names: Sequence[str]) -> list[Executor]:
    """A few tasks, each of which tells what it runs on. `names`: the packages to look for.

    Raises InvalidConfigurationException if the workers cannot import Lakelog or the session has no Delta, and
    ExecutorsFailed if Spark has no executor.
    """
    check_spark(spark)
    tasks = range(min(_MOST_TASKS, max(2, spark.sparkContext.defaultParallelism)))
    return on_executors(spark, partial(tell, tuple(names)), tasks, _PATIENCE_SECONDS)


def tell(names: Sequence[str], _: int = 0) -> Executor:
    """What this process has. Spark pickles it by its name, so a worker has to import this module."""
    return Executor(socket.gethostname(), python_version(), tuple(installed(names).items()))
