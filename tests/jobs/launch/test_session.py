"""Spark sessions of users, made by Lakelog and by hand, each in its own process and JVM."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from lakelog.jobs.launch import session
from lakelog.jobs.launch.spark_submit import SOURCES
from lakelog.replication.errors import InvalidConfigurationException

BY_HAND = """
import os, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
import lakelog
from lakelog.replication.server import spark_check

def refusal(work):
    try:
        work()
    except lakelog.LakelogException as error:
        print(error.name, error, sep=": ")

refusal(lambda: lakelog.LocalCluster(spark, sys.argv[1]).start())
refusal(lakelog.spark_session)
spark_check.check_delta = lambda _: None
refusal(lambda: lakelog.LocalCluster(spark, sys.argv[1]).start())
spark.stop()
refusal(lakelog.spark_session)
print(os.environ["PYSPARK_PYTHON"] == sys.executable)
"""

BY_LAKELOG = """
import os, signal, sys, threading
sys.path.insert(0, os.environ.pop("PATH_OF_THE_DRIVER"))
import lakelog
try:
    lakelog.spark_session("mine", master="local[two]")
except lakelog.LakelogException as error:
    print(error.name, error, sep=": ")
spark = lakelog.spark_session("mine", master="local[2]", configs={"spark.sql.shuffle.partitions": 3})
print(lakelog.spark_session() is spark, spark.sparkContext.appName, spark.sparkContext.master)
print(spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.session.timeZone"))
cluster = lakelog.LocalCluster(spark, sys.argv[1], brokers=1)
cluster.start()
cluster.admin().create_topic("orders", partitions=1, replication_factor=1)
(sent,) = lakelog.Producer(cluster.cluster_uri).send("orders", [{"key": "k", "value": "v"}], 120_000).values()
print(sent.error, [bytes(r["value"]) for r in lakelog.read_committed(spark, cluster.cluster_uri, "orders").collect()])
os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
while cluster.brokers[1].is_running:
    threading.Event().wait(0.05)
cluster.stop()
print("the process lives, its broker does not")
"""

BAD_MASTER = "org.apache.spark.SparkException: Could not parse Master URL: 'local[two]'"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def run(program: str, folder: Path, **variables: str) -> tuple[list[str], str]:
    """Lines of stdout, and stderr, of a program that stands in that folder. Its JVM compiles quickly, not well."""
    unset = ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", program, str(folder / "cluster")]
    done = subprocess.run(
        command, env={**environment, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": QUICK, **variables},
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_session_made_by_hand_is_refused_in_one_sentence_before_anything_is_written(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without the installed packages
    python.chmod(0o755)
    lines, errors = run(BY_HAND, tmp_path, PYSPARK_PYTHON=str(python), PYTHONPATH=str(SOURCES))
    without_delta = "InvalidConfigurationException: Spark cannot read Delta tables: start it with --packages io.delta:"
    assert [line.startswith(without_delta) for line in lines] == [True, True, False, True, False]
    assert f"Spark's Python workers ({python}) cannot run Lakelog: ModuleNotFoundError: No module named" in lines[2]
    assert f"set PYSPARK_PYTHON={sys.executable} before Spark starts" in lines[2]
    assert lines[4] == "True", "a new session would have workers of this interpreter"
    assert "\tat " not in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "cluster").exists()


@pytest.fixture
def upgraded_jdk(tmp_path: Path) -> Path:
    """A copy of the JDK whose helper for new processes cannot run, as after an upgrade under a running JVM."""
    java = Path(os.environ.get("JAVA_HOME", Path(shutil.which("java") or "").resolve().parents[1]))

    def place(source: str, target: str) -> None:  # the JVM takes the place of its libraries for its home
        (os.symlink if source.endswith("/modules") else shutil.copy)(source, target)

    shutil.copytree(java / "bin", tmp_path / "jdk/bin")
    shutil.copytree(java / "lib", tmp_path / "jdk/lib", copy_function=place, ignore_dangling_symlinks=True)
    shutil.copytree(java / "conf", tmp_path / "jdk/conf")
    (tmp_path / "jdk/lib/jspawnhelper").write_text("of another version\n")
    return tmp_path / "jdk"


def test_a_session_by_lakelog_works_in_plain_python_and_its_brokers_end_with_the_jvm(
    tmp_path: Path, upgraded_jdk: Path
) -> None:
    """The driver's `sys.path` has the package, and no variable tells the workers of it. They start although the JDK was
    upgraded."""
    lines, errors = run(BY_LAKELOG, tmp_path, PATH_OF_THE_DRIVER=str(SOURCES), JAVA_HOME=str(upgraded_jdk))
    assert lines == [
        f"InvalidConfigurationException: Spark does not start: {BAD_MASTER}",
        "True mine local[2]",
        "3 UTC",
        "None [b'v']",
        "the process lives, its broker does not",
    ]
    assert "accumulators.py" not in errors, "PySpark's trace of a JVM that has died"


def test_a_jvm_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_at_once(*_: object) -> dict[str, str]:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "_start_jvm", ends_at_once)
    with pytest.raises(
        InvalidConfigurationException, match=r"Spark does not start, its own messages tell why: \[JAVA_GATEWAY_EXITED\]"
    ):
        session.spark_session()


def test_the_process_of_a_verb_ends_when_its_jvm_has_died(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks, ended, statuses = iter([False, True]), threading.Event(), []
    monkeypatch.setattr(session, "spark_session", lambda app_name, *_: app_name)
    monkeypatch.setattr(session, "has_jvm_died", lambda: next(looks))

    def leave(status: int) -> None:
        statuses.append(status)
        ended.set()

    monkeypatch.setattr(os, "_exit", leave)
    assert session.job_session("a verb") == "a verb"
    assert ended.wait(30)
    assert statuses == [1]
    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("ERROR", "the JVM of this driver has died, so the driver stops")
    ]


def test_every_verb_ends_with_its_jvm() -> None:
    """So they make their sessions by `job_session`."""
    users = [path.name for path in (SOURCES / "jobs").rglob("*.py") if "import spark_session" in path.read_text()]
    assert users == []
