"""Spark's standalone cluster on this machine: a master and workers, from the distribution that PySpark brings."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.launch.spark_submit import spark_home

_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_SECONDS = 180.0
_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}  # the web pages too


class Standalone:
    """A cluster that runs. `master`: the URI of its master. `folder`: has its logs and those of its executors."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.master = folder, ""
        self._log = folder / "master.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts the master. Raises TimeoutException if it does not start in time."""
        self._start("master", "master.Master", "--port", "0")
        wait_until(lambda: _STARTED.search(self._log.read_text()) is not None, "the master starts", _SECONDS)
        self.master = _STARTED.findall(self._log.read_text())[0]

    def add_workers(self, number: int) -> None:
        """Starts workers with 1 core and 1 GB each. Raises TimeoutException if they do not register in time."""
        for _ in range(number):
            name = f"worker-{len(self._processes)}"
            words = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name), self.master)
            self._start(name, "worker.Worker", *words)
        all_workers = len(self._processes) - 1
        registered = "Registering worker"
        wait_until(lambda: self._log.read_text().count(registered) == all_workers, "the workers register", _SECONDS)

    def stop(self) -> None:
        """Ends all processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(_SECONDS)

    def _start(self, name: str, kind: str, *words: str) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_NO_DAEMONIZE": "1", **_LOOPBACK}
        environment.pop("SPARK_CONF_DIR", None)  # what a master says is at a level that Lakelog's own folder leaves out
        with (self.folder / f"{name}.log").open("wb") as file:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--webui-port", "0", *words],
                stdout=file, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip
        self._processes.append(process)


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[Standalone]:
    """Runs a master, and workers with 1 core and 1 GB each, on the loopback interface."""
    cluster = Standalone(folder)
    try:
        cluster.start()
        cluster.add_workers(workers)
        yield cluster
    finally:
        cluster.stop()
