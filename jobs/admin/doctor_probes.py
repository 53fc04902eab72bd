"""Gathers the facts for `lakelog doctor`: probes of roots in parallel, clocks of writers, packages, Java, disks."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lakelog.jobs.admin.doctor_findings import Executor
from lakelog.jobs.launch.installed import java_environment
from lakelog.jobs.launch.spark_submit import spark_home
from lakelog.replication.errors import InvalidConfigurationException, LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import is_commit, read_commit
from lakelog.replication.storage.delta.spark_delta import DELTA_PACKAGE
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.store_probe import StoreProbe
from lakelog.schemas import BROKERS, CONTROLLER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLEAN_UP_SECONDS = 10.0
_EXECUTORS_SECONDS = 120.0  # a container may have to start first
_MOST_TASKS = 64
_COMMITS = 3
_PIN = re.compile(r"([A-Za-z0-9_.-]+)==([^;\s]+)(?:\s*;\s*extra\s*==\s*['\"](\w+)['\"])?")
_SPARK = "spark"  # the extra of pyproject.toml that only brokers need


class Work(NamedTuple):
    """Work that may hang. `run` does it; `stop` is called once nobody waits for it any more."""

    run: Callable[[], None]
    stop: Callable[[], None] = lambda: None


def probe_work(probe: StoreProbe) -> Work:
    """The probe of a root as work."""
    return Work(probe.run, probe.stopping.set)


def run_in_parallel(work: Sequence[Work], seconds: float, advance: Callable[[], object] = lambda: None) -> None:
    """Runs all work at the same time, and waits at most `seconds`. Calls `advance` when one has ended. Then it stops
    the others. After an error, such as Ctrl-C, it stops them, too, and waits for them to clean up."""

    # Events, because a signal in the middle of `Thread.join` makes Python 3.11 take the thread for one that has ended.
    ends = [threading.Event() for _ in work]

    def run(each: Work, end: threading.Event) -> None:
        try:
            each.run()
        finally:
            end.set()
            advance()

    for pair in zip(work, ends, strict=True):
        threading.Thread(target=run, args=pair, daemon=True).start()  # nobody waits for one that hangs
    has_failed = True
    try:
        _wait(ends, seconds)
        has_failed = False
    finally:
        for each, end in zip(work, ends, strict=True):
            if not end.is_set():
                each.stop()
        if has_failed:
            _wait(ends, _CLEAN_UP_SECONDS)


def _wait(ends: Iterable[threading.Event], seconds: float) -> None:
    until = time.monotonic() + seconds
    for end in ends:
        end.wait(max(0.0, until - time.monotonic()))


class WriterClock(NamedTuple):
    """How many seconds the clock of a process is ahead of that of the cluster root's store. `written_at`: when the
    newest commit was written that shows this, in seconds since the epoch by the store's clock."""

    ahead: float
    written_at: float


def writer_clocks(cluster: Cluster) -> dict[str, WriterClock]:
    """The clocks of the brokers and of the controller, by their newest heartbeats.

    A commit has a time of its writer, and its file has a time of the store. A commit may take a while, or be repeated,
    so the fastest of the newest three counts.
    """
    folders = {f"broker {number}": cluster.root.child(BROKERS.name, str(number)) for number in cluster.brokers}
    folders["the controller"] = cluster.root.child(CONTROLLER.name)
    found = {}
    for name, folder in folders.items():
        with suppress(LakelogException, FileNotFoundError):
            if clocks := [*_clocks(folder)]:
                found[name] = max(clocks)
    return found


def _clocks(folder: StorageRoot) -> Iterator[WriterClock]:
    written = folder.child("_delta_log").modified()
    for name in sorted(filter(is_commit, written))[-_COMMITS:]:
        info = read_commit(folder, int(name[:20])).info
        if "who" in info and "timestamp" in info:  # not the first commit: another process may have made the table
            yield WriterClock(info["timestamp"] / 1000 - written[name], written[name])


def pins() -> tuple[dict[str, str], frozenset[str]]:
    """The versions of packages that pyproject.toml pins for what ships, and the names of those that only brokers need.
    Both are empty if Lakelog is not installed."""
    try:
        lines = metadata.requires("lakelog") or []
    except metadata.PackageNotFoundError:
        return {}, frozenset()
    found = [match.groups() for line in lines if (match := _PIN.match(line))]
    kept = [(name, version, extra) for name, version, extra in found if extra in (None, _SPARK)]
    return {name: version for name, version, _ in kept}, frozenset(name for name, _, extra in kept if extra == _SPARK)


def installed(names: Iterable[str]) -> dict[str, str | None]:
    """The versions of packages in this Python, None for those that are missing."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def python_version() -> str:
    """The version of this Python, such as 3.11.7."""
    return platform.python_version()


def executors_of(spark: SparkSession, names: Sequence[str]) -> list[Executor]:
    """Runs a few tasks of Spark, each of which describes its Python worker. `names`: the packages to look for.

    Raises InvalidConfigurationException if the workers cannot import Lakelog or the session has no Delta, and
    ExecutorsFailed if Spark has no executor.
    """
    from lakelog.replication.server.executors import on_executors  # imported late: other checks need no Spark
    from lakelog.replication.server.spark_check import check_spark

    check_spark(spark)
    tasks = range(min(_MOST_TASKS, max(2, spark.sparkContext.defaultParallelism)))
    return on_executors(spark, partial(describe_executor, tuple(names)), tasks, _EXECUTORS_SECONDS)


def describe_executor(names: Sequence[str], _: int = 0) -> Executor:
    """The host of this process, its Python, and its versions of packages. Spark pickles this function by its name, so a
    worker has to import this module."""
    return Executor(socket.gethostname(), python_version(), tuple(installed(names).items()))


def delta_jars() -> tuple[str, list[str]]:
    """The name of the jar of Delta that Lakelog needs, and the names of those that Spark finds on this machine."""
    _, artifact, version = DELTA_PACKAGE.split(":")
    folders = (Path(sys.prefix, "jars"), spark_home() / "jars")
    found = {jar.name.removeprefix("io.delta_") for folder in folders for jar in folder.glob("*delta-spark*.jar")}
    return f"{artifact}-{version}.jar", sorted(found)


def java() -> tuple[str | None, str | None]:
    """Why Spark would find no Java, and the JAVA_HOME that Lakelog would give it, if that is not the default."""
    try:
        return None, java_environment().get("JAVA_HOME")
    except InvalidConfigurationException as error:
        return str(error), None


def scratch_folders(environment: Mapping[str, str] = os.environ) -> dict[str, list[str]]:
    """The folders for temporary files of a broker on this machine that exist, and the uses of each. The first one also
    has the checkpoints of a root in an object store."""
    uses = {tempfile.gettempdir(): ["checkpoints", "temporary files"]}
    for folder in environment.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder:
            uses.setdefault(os.path.abspath(folder), []).append("SPARK_LOCAL_DIRS")
    return uses
