"""Brokers and controllers as processes of their own, which may be killed and frozen as hard as one likes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from lakelog.jobs.launch.code_archive import SOURCES
from lakelog.replication.errors import BrokerNotAvailableException

# Several brokers that start again and again find room on a small machine, if their JVMs optimize nothing for long runs.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = ("--driver-memory", "512m", "--master", "local[2]", "--driver-java-options", _JAVA)


class ServerProcess:
    """A verb that runs until it is told to stop, with its output in a file.

    The process is the one that `./spark-submit.sh VERB` ends up as. Signals but SIGTERM hit its whole group.
    """

    def __init__(self, name: str, words: tuple[str, ...], log: Path) -> None:
        self.name = name
        self.log = log
        self.is_paused = False
        self._command = [sys.executable, "-m", "lakelog.jobs", *words]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Its process id, None unless it was started and not ended since."""
        return self._process.pid if self._process else None

    def is_running(self) -> bool:
        """Whether it was started and has not ended, by itself or otherwise; it may be frozen."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it, with its JVM if it has one, as a process group of its own."""
        path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip

    def has_said(self, words: str) -> bool:
        """Whether its log has these words, since it was started last."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return words.encode() in log.read()

    def check(self) -> None:
        """Raises BrokerNotAvailableException if it has ended and nobody has asked for that."""
        status = self._process.poll() if self._process else None
        if status is not None:
            raise BrokerNotAvailableException(f"{self.name} has ended with status {status}: see {self.log}")

    def pause(self) -> None:
        """Freezes it with SIGSTOP, in the middle of whatever it does."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Lets it go on, with SIGCONT."""
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        """Ends it and its JVM with SIGKILL, in the middle of whatever they do, also while they are frozen."""
        if self._process:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self.is_paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and so has its JVM
                os.killpg(self._process.pid, number)

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


class BrokerProcess(ServerProcess):
    """`lakelog broker`."""

    def __init__(
        self, cluster_uri: str, broker_id: int, root: str, log: Path, config: Path | None = None,
        options: tuple[str, ...] = SMALL,
    ) -> None:  # fmt: skip
        told = ("--cluster", cluster_uri, "--broker-id", str(broker_id), "--root", root, *_config(config))
        super().__init__(f"broker {broker_id}", ("broker", *options, *told), log)
        self.broker_id = broker_id
        self.root = root


class ControllerProcess(ServerProcess):
    """`lakelog controller`, which needs no JVM."""

    def __init__(self, cluster_uri: str, name: str, log: Path, config: Path | None = None) -> None:
        super().__init__(name, ("controller", "--cluster", cluster_uri, *_config(config)), log)

    def has_id(self, controller_id: str) -> bool:
        """Whether a controller's id, `<host>-<pid>-<random>`, is this process's."""
        return self.is_running() and controller_id.split("-")[-2:-1] == [str(self.pid)]


def _config(path: Path | None) -> tuple[str, ...]:
    return () if path is None else ("--config", str(path))
