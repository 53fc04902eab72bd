"""A broker as a process of its own, which may be killed as hard as one likes."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from jobs.code_archive import SOURCES
from replication.errors import BrokerNotAvailableException

# Several brokers that start again and again find room on a small machine, if their JVMs optimize nothing for long runs.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = ("--driver-memory", "512m", "--master", "local[2]", "--driver-java-options", _JAVA)


class BrokerProcess:
    """`lakelog broker` with its output in a file: the process is the one that `./spark-submit.sh broker` ends up as."""

    def __init__(
        self, cluster_uri: str, broker_id: int, root: str, log: Path, options: tuple[str, ...] = SMALL
    ) -> None:
        self.broker_id = broker_id
        self.root = root
        self.log = log
        told = ["--cluster", cluster_uri, "--broker-id", str(broker_id), "--root", root]
        self._command = [sys.executable, "-m", "jobs", "broker", *options, *told]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, with its JVM, as a process group of its own."""
        path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip

    def check(self) -> None:
        """Raises BrokerNotAvailableException if it has ended and nobody has asked for that."""
        status = self._process.poll() if self._process else None
        if status is not None:
            raise BrokerNotAvailableException(f"broker {self.broker_id} has ended with status {status}: see {self.log}")

    def kill(self) -> None:
        """Ends the driver and its JVM with SIGKILL, in the middle of whatever they do."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and so has its JVM
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self, seconds: float = 60) -> int:
        """Asks it to stop in order, and returns its status; one that does not stop in time is killed."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float = 60) -> int:
        """The status with which it ends by itself; one that does not end in time is killed."""
        assert self._process is not None
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        self.kill()
        return status
