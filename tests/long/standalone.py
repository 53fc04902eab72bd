"""Spark's standalone cluster on this machine: a master and workers, from the distribution that PySpark brings."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lakelog.jobs.launch.spark_submit import spark_home
from tests.processes import wait_until

_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_SECONDS = 60


class Standalone(NamedTuple):
    """A cluster that runs: the URI of its master, and the folder of its logs and of those of its executors."""

    master: str
    folder: Path


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Standalone]:
    """Runs a master, and workers with 1 core and 1 GB each, on the loopback interface."""
    processes = [_start(folder / "master.log", "master.Master", "--port", "0")]
    try:
        log = folder / "master.log"
        found = wait_until(lambda: _STARTED.search(log.read_text()), "the master", _SECONDS)
        for number in range(workers):
            name = f"worker-{number}"
            words = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name), found[1])
            processes.append(_start(folder / f"{name}.log", "worker.Worker", *words))
        wait_until(lambda: log.read_text().count("Registering worker") == workers, "the workers", _SECONDS)
        yield Standalone(found[1], folder)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(_SECONDS)


def _start(log: Path, kind: str, *words: str) -> subprocess.Popen[bytes]:
    command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_NO_DAEMONIZE": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *words],
            stdout=file, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
