"""The Spark session of users and of verbs, and the watch over its JVM."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakelog.jobs.launch.installed import java_environment
from lakelog.jobs.launch.spark_submit import session_environment
from lakelog.replication.clients.arguments import mapping, text
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.server.executors import error_line
from lakelog.replication.server.spark_check import has_jvm_died
from lakelog.replication.storage.delta.spark_delta import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    check_delta,
    check_delta_jar,
)

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1

# What Lakelog does not work without, also where conf/spark-defaults.conf is not in use.
_NEEDED = {
    CATALOG: DELTA_CATALOG,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}


def spark_session(
    app_name: str = "lakelog", master: str | None = None, configs: Mapping[str, object] | None = None
) -> SparkSession:
    """A Spark session that can run brokers and read topics: in plain Python, in a notebook and under spark-submit.

    `master`: such as "local[4]"; default: that of Spark's own configuration, else "local[*]". `configs`: settings of
    Spark, such as {"spark.driver.memory": "4g"}. The settings of spark-submit and of PYSPARK_SUBMIT_ARGS stay.

    A session that exists already is used as it is. Raises InvalidConfigurationException if it has no Delta: its JVM was
    started without, and no JVM gets other jars later. It is also raised if there is no Java 17 or 21,
    or if Spark does not start, for example because it refuses the master or cannot reach it.
    """
    settings = _settings(configs)
    text(app_name, "app_name")
    if master:
        settings["spark.master"] = text(master, "master")
    if SparkContext._active_spark_context is None:
        spark = _started(settings, app_name)
    else:
        spark = SparkSession.builder.config(map=settings).getOrCreate()
    check_delta(spark)
    return spark


def _settings(configs: Mapping[str, object] | None) -> dict[str, Any]:
    given = {} if configs is None else mapping(configs, "configs", '{"spark.driver.memory": "4g"}')
    return {text(name, "a name in configs"): text(str(value), f"configs: {name}") for name, value in given.items()}


def job_session(
    app_name: str, master: str | None = None, configs: Mapping[str, object] | None = None
) -> SparkSession:  # fmt: skip
    """The session of a verb, see `spark_session`. Its process ends as soon as its JVM has died.

    Not so in `spark_session`: a notebook's kernel holds the work of its user. There each broker ends by itself.
    """
    spark = spark_session(app_name, master, configs)
    threading.Thread(target=_exit_with_jvm, name="stop-with-jvm", daemon=True).start()
    return spark


def _hide_end_of_updates(context: SparkContext) -> None:
    """PySpark's server of accumulators prints a stack trace when its JVM has died: it reads to the end of a stream."""
    server: Any = context._accumulatorServer
    printed = server.handle_error

    def handle_error(*request: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            printed(*request)

    server.handle_error = handle_error


def _started(settings: dict[str, Any], app_name: str) -> SparkSession:
    try:
        missing = _start_jvm(settings, app_name)
        spark = SparkSession.builder.config(map={**settings, **missing}).getOrCreate()
        _hide_end_of_updates(spark.sparkContext)
        return spark
    except Py4JJavaError as error:
        raise InvalidConfigurationException(f"Spark does not start: {error_line(error)}") from error
    except PySparkException as error:
        raise InvalidConfigurationException(
            f"Spark does not start, its own messages tell why: {error_line(error)}"
        ) from error


def _start_jvm(settings: Mapping[str, str], app_name: str) -> dict[str, str]:
    """The settings that are still needed, once there is a JVM: only the JVM has the arguments of spark-submit."""
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.update({**session_environment(settings), **java_environment()})
    with _ignoring_sigterm_in_children():
        SparkContext._ensure_initialized()
    given = SparkConf().setAll(list(settings.items()))
    if given.get("spark.master", "local").startswith("local"):  # under spark-submit it is not set for the workers
        os.environ["PYSPARK_PYTHON"] = sys.executable
    check_delta_jar(SparkContext._jvm)
    missing = {name: value for name, value in _NEEDED.items() if not given.contains(name)}
    return {**missing, EXTENSIONS: _extensions(given), "spark.app.name": _name(given, app_name)}


class _Forks(threading.local):
    """Whether a process that this thread starts ignores SIGTERM."""

    ignore_sigterm = False


_forks = _Forks()


@contextlib.contextmanager
def _ignoring_sigterm_in_children() -> Iterator[None]:
    """A block whose thread starts a JVM that ignores SIGTERM, as PySpark has it ignore SIGINT. It ends when its driver
    does, by the end of its standard input. systemd and `timeout` signal both at once, and a broker stops through it."""
    _forks.ignore_sigterm = True
    try:
        yield
    finally:
        _forks.ignore_sigterm = False


def _after_fork() -> None:
    if _forks.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_after_fork)  # PySpark has a hook of its own for Popen, and takes no other


def _name(given: SparkConf, app_name: str) -> str:
    """Spark's own guess for a driver without a name is the name of a script."""
    name = given.get("spark.app.name", "pyspark-shell")
    return app_name if name == "pyspark-shell" or name.endswith(".py") else name


def _extensions(given: SparkConf) -> str:
    """Delta's beside those of the user, such as Iceberg's."""
    names = [name for name in given.get(EXTENSIONS, "").split(",") if name]
    return ",".join(names if DELTA_EXTENSION in names else [*names, DELTA_EXTENSION])


def _exit_with_jvm() -> None:
    never = threading.Event()
    while not has_jvm_died():
        never.wait(_POLL_SECONDS)
    try:  # under plain spark-submit stderr is a pipe to the dead JVM
        logger.error("the JVM of this driver has died, so the driver stops")
    finally:
        os._exit(1)  # no clean-up: that would be work of a process that may no longer commit
