"""A verb that runs as a process of its own, which a program can freeze, stop and kill at any moment."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lakelog.jobs.launch.spark_submit import SOURCES
from lakelog.replication.errors import BrokerNotAvailableException, LakelogException, error_named

LAKELOG: Sequence[str] = (sys.executable, "-m", "lakelog.jobs")  # this checkout

_ERROR = re.compile(r"lakelog: (\w+): (.*)")  # the sentence with which a verb fails


class ServerProcess:
    """A verb that runs until it is stopped, with its output in a file.

    It is the process that `./spark-submit.sh VERB` turns into. `program` is the command before the verb: another one,
    such as the script of another checkout, counts from the next start on. Signals other than SIGTERM go to its whole
    process group.
    """

    def __init__(self, name: str, words: tuple[str, ...], log: Path) -> None:
        self.name = name
        self.log = log
        self.is_paused = False
        self.program = LAKELOG
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The process id; None if it was not started or was ended."""
        return self._process.pid if self._process else None

    def is_running(self) -> bool:
        """Whether it was started and has not ended; it may be frozen."""
        return self._process is not None and self._process.poll() is None

    def start(self, *flags: str) -> None:
        """Starts the process, and its JVM if it has one, in a process group of its own. `flags` are for this start."""
        path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*self.program, *self._words, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )

    def has_said(self, words: str) -> bool:
        """Whether its log has these words since the last start."""
        return words.encode() in self._said()

    def error(self) -> LakelogException | None:
        """The error with which it has ended by itself since the last start; None if it runs, or has said none."""
        if self._process is None or self._process.poll() is None:
            return None
        said = [_ERROR.fullmatch(line) for line in self._said().decode("utf-8", "replace").splitlines()]
        return next((error_named(*found.groups()) for found in reversed(said) if found), None)

    def _said(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()

    def check(self) -> None:
        """Raises BrokerNotAvailableException if the process has ended by itself."""
        status = self._process.poll() if self._process else None
        if status is not None:
            raise BrokerNotAvailableException(f"{self.name} has ended with status {status}: see {self.log}")

    def pause(self) -> None:
        """Freezes the process with SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Resumes the process with SIGCONT."""
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        """Ends the process and its JVM with SIGKILL, also if they are frozen."""
        if self._process:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self.is_paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):  # the process and its JVM have ended
                os.killpg(self._process.pid, number)

    def stop(self, seconds: float = 60) -> int:
        """Sends SIGTERM and returns the exit status. Kills the process if it does not end within `seconds`."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float = 60) -> int:
        """Waits for the process to end and returns its exit status. Kills it if it does not end within `seconds`."""
        assert self._process is not None
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        self.kill()
        return status


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface on which nobody listens now. All are held until the last is found."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]
