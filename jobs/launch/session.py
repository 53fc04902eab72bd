"""The Spark session of a job, and the watch over its JVM."""

import os
import sys
import threading
from collections.abc import Callable
from subprocess import Popen

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

_EXTENSIONS = "spark.sql.extensions"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

# What Lakelog does not work without, also where conf/spark-defaults.conf is not in use.
_NEEDED = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.ui.enabled": "false",
}


def spark_session(app_name: str) -> SparkSession:
    """A session with what Lakelog needs; whatever spark-submit was told stays as it was told."""
    SparkContext._ensure_initialized()  # the JVM first: only it knows what spark-submit was told
    given = SparkConf()
    builder = SparkSession.builder.appName(_name(given, app_name)).config(_EXTENSIONS, _extensions(given))
    for key, value in _NEEDED.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    stop_with_jvm()
    return spark


def stop_with_jvm() -> None:
    """End this process as soon as its JVM has died.

    Python outlives a killed JVM, and commits by delta-rs need none: a broker without streams would go on as leader.
    """
    process: Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    wait = process.wait if process else _wait_for_parent
    threading.Thread(target=_exit_after, args=(wait,), name="stop-with-jvm", daemon=True).start()


def _name(given: SparkConf, app_name: str) -> str:
    """Spark's own guess for a driver without a name is the name of a script."""
    name = given.get("spark.app.name", "pyspark-shell")
    return app_name if name == "pyspark-shell" or name.endswith(".py") else name


def _extensions(given: SparkConf) -> str:
    """Delta's beside those of the user, such as Iceberg's."""
    names = [name for name in given.get(_EXTENSIONS, "").split(",") if name]
    return ",".join(names if _DELTA_EXTENSION in names else [*names, _DELTA_EXTENSION])


def _wait_for_parent() -> None:
    """Under plain spark-submit the JVM is the parent, and a dead parent is replaced by another."""
    parent = os.getppid()
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(0.5)


def _exit_after(wait: Callable[[], object]) -> None:
    wait()
    try:  # under plain spark-submit stderr is a pipe to the dead JVM
        print("lakelog: the JVM of this driver has died, so the driver stops", file=sys.stderr, flush=True)
    finally:
        os._exit(1)  # no clean-up: that would be work of a process that may no longer commit
