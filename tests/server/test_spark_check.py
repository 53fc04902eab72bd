"""A broker refuses a Spark session that cannot run it, in one sentence that says what to set."""

import shutil
import sys
from types import SimpleNamespace

import pytest

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.server import spark_check
from lakelog.replication.server.executors import ExecutorsFailed
from lakelog.replication.server.fetcher.follower_query import follower_session
from lakelog.replication.server.spark_check import check_spark
from lakelog.replication.storage.delta.spark_delta import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    check_delta,
)

OTHER = "/usr/bin/other-python"
IMPORT = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "pyspark/serializers.py", line 454, in loads
ModuleNotFoundError: No module named 'lakelog'
 SQLSTATE: 38000"""
HIDDEN = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: \
ModuleNotFoundError: No module named 'pyarrow'
 SQLSTATE: 38000"""
VERSION = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: \
3.10 than that in driver: 3.11, PySpark cannot run with different minor versions.
Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set."""
NO_PROGRAM = """An error occurred while calling o45.load.
: java.io.IOException: Cannot run program "/usr/bin/other-python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
Caused by: java.io.IOException: error=2, No such file or directory"""
TASK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "pyspark/serializers.py", line 454, in loads
ModuleNotFoundError: No module named 'deltalake'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:645)"""
SLOW = "An error occurred.\n: org.apache.spark.SparkException: Python worker failed to connect back."


class Context:
    """A Spark context whose workers run this interpreter."""

    def __init__(self, python, master):
        self.pythonExec, self.master = python, master


def session(python=OTHER, master="local[2]"):
    made = SimpleNamespace(sparkContext=Context(python, master))
    made.newSession = lambda: made
    return made


@pytest.fixture
def workers(monkeypatch):
    """Sets the result of each try of the workers: an error, or None for success. Returns the tries."""
    monkeypatch.setattr(spark_check, "check_delta", lambda _: None)
    tries = []

    def end(*outcomes):
        left = iter(outcomes)

        def load_probe(*_):
            tries.append(1)
            if (error := next(left)) is not None:
                raise RuntimeError(error)

        monkeypatch.setattr(spark_check, "load_probe", load_probe)
        return tries

    return end


@pytest.mark.parametrize(
    ("python", "error", "sentence"),
    [
        (OTHER, IMPORT, f"({OTHER}) cannot run Lakelog: ModuleNotFoundError: No module named 'lakelog'; set PYSPARK_P"),
        (OTHER, VERSION, "has different version: 3.10 than that in driver: 3.11, PySpark cannot run with different "),
        (OTHER, NO_PROGRAM, 'IOException: Cannot run program "/usr/bin/other-python": error=2, No such file or direct'),
        (OTHER, HIDDEN, f"({OTHER}) cannot run Lakelog: ModuleNotFoundError: No module named 'pyarrow'; set PYSPARK_P"),
        (OTHER, "it went away\nand more", "cannot run Lakelog: it went away; set PYSPARK_PYTHON="),
        (sys.executable, IMPORT, "No module named 'lakelog'; set PYTHONPATH="),
    ],
    ids=[
        "without the package",
        "another version",
        "no such program",
        "hidden stack trace",
        "unknown",
        "the same interpreter",
    ],
)
def test_workers_that_fail_are_refused_in_one_sentence(workers, python, error, sentence):
    workers(error)
    with pytest.raises(InvalidConfigurationException) as raised:
        check_spark(session(python))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("before Spark starts, or let lakelog.spark_session() start it")


def test_the_refusal_of_another_interpreter_names_the_drivers(workers):
    workers(IMPORT)
    with pytest.raises(InvalidConfigurationException, match=f"set PYSPARK_PYTHON={sys.executable} before"):
        check_spark(session(shutil.which("sh")))


def test_workers_that_are_slow_to_start_are_tried_again(workers):
    tries = workers(SLOW, SLOW, None)
    check_spark(session())
    assert len(tries) == 3


def test_workers_that_never_start_are_refused(workers):
    workers(SLOW, SLOW, SLOW)
    with pytest.raises(InvalidConfigurationException, match="Python worker failed to connect back; set PYSPARK_P"):
        check_spark(session())


def test_a_spark_application_is_checked_once_and_again_after_a_refusal(workers):
    tries, application = workers(IMPORT, None, None), session()
    with pytest.raises(InvalidConfigurationException):
        check_spark(application)
    for _ in range(3):
        check_spark(application)
    assert len(tries) == 2
    check_spark(session())
    assert len(tries) == 3


def without_delta(has_class, settings):
    """A session with these settings, whose JVM has Delta's classes or not."""

    def load(_):
        if not has_class:
            raise RuntimeError("java.lang.ClassNotFoundException")

    loader = SimpleNamespace(loadClass=load)
    thread = SimpleNamespace(getContextClassLoader=lambda: loader)
    lang = SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread))
    jvm = SimpleNamespace(java=SimpleNamespace(lang=lang))
    return SimpleNamespace(_jvm=jvm, conf=SimpleNamespace(get=settings.get))


WHOLE = {EXTENSIONS: f"com.example.Other,{DELTA_EXTENSION}", CATALOG: DELTA_CATALOG}


@pytest.mark.parametrize(
    ("has_class", "settings", "missing"),
    [
        (False, WHOLE, "start it with --packages io.delta:delta-spark_"),
        (True, {CATALOG: DELTA_CATALOG}, f"start it with --conf {EXTENSIONS}={DELTA_EXTENSION}, or"),
        (True, {**WHOLE, CATALOG: "builtin"}, f"start it with --conf {CATALOG}={DELTA_CATALOG}, or"),
    ],
    ids=["no jar", "no extension", "no catalog"],
)
def test_a_session_without_delta_is_refused_with_what_is_missing(has_class, settings, missing):
    with pytest.raises(InvalidConfigurationException, match="Spark cannot read Delta tables: start it with") as raised:
        check_delta(without_delta(has_class, settings))
    assert missing in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("catalog", [DELTA_CATALOG, "com.example.CatalogOverDelta"])
def test_a_session_with_delta_is_not_refused(catalog):
    check_delta(without_delta(True, {**WHOLE, CATALOG: catalog}))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (None, "given this application no executor for 120 s: each broker needs a free core of its cluster; limit"),
        (TASK, f"cannot run Lakelog: ModuleNotFoundError: No module named 'deltalake'; on their machines {OTHER} must"),
        (NO_PROGRAM, 'cannot run Lakelog: IOException: Cannot run program "/usr/bin/other-python": error=2, No such'),
    ],
    ids=["no free core", "without a package", "no such program"],
)
def test_executors_that_fail_are_refused_in_one_sentence(workers, monkeypatch, error, sentence):
    def fails(_spark, call, items, patience_seconds):
        assert ([call(item) for item in items], patience_seconds) == ([None], 120)
        raise ExecutorsFailed("away") from (RuntimeError(error) if error else None)

    workers(None)
    monkeypatch.setattr(spark_check, "on_executors", fails)
    with pytest.raises(InvalidConfigurationException) as raised:
        check_spark(session(master="spark://host:7077"))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_broker_checks_spark_before_anything_else(workers):
    workers(IMPORT)
    with pytest.raises(InvalidConfigurationException, match="cannot run Lakelog"):
        follower_session(session())


def test_a_sound_session_is_not_refused(spark):
    check_spark(spark)
