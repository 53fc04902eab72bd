"""Repeats work in a thread of its own while a test measures or breaks the cluster."""

import threading
from abc import ABC, abstractmethod

from lakelog.replication.errors import TimeoutException

_PAUSE_SECONDS = 0.5
_END_SECONDS = 180.0


class RepeatedWork(ABC):
    """Calls `work` again and again, after a pause of `pause_seconds` each time. Without pauses the test would measure
    an overloaded machine instead of the cluster."""

    def __init__(self, name: str, pause_seconds: float = _PAUSE_SECONDS) -> None:
        self._name = name
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> object:
        """Does the work once. An exception ends the thread."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the current call. Raises the error that ended the thread, TimeoutException if the thread does not
        end."""
        self._stopping.set()
        self._thread.join(_END_SECONDS)
        self.check()
        if self._thread.is_alive():
            raise TimeoutException(f"{self._name} has not ended within {_END_SECONDS:.0f} s")

    def check(self) -> None:
        """Raises the error that ended the thread."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._pause_seconds):
                self.work()
        except BaseException as error:
            self._failure = error
