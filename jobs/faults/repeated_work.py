"""Work that is done over and over in a thread of its own, beside whatever is measured or broken meanwhile."""

import threading
from abc import ABC, abstractmethod

from lakelog.replication.errors import TimeoutException

_PAUSE_SECONDS = 0.5
_END_SECONDS = 180.0


class RepeatedWork(ABC):
    """`work`, with a pause before each time: what is measured beside it is the cluster, and not a machine that has no
    time left."""

    def __init__(self, name: str, pause_seconds: float = _PAUSE_SECONDS) -> None:
        self._name = name
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> object:
        """Does it once. What it raises ends the thread."""

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after what is under way. Raises what has ended the thread, TimeoutException if it does not end."""
        self._stopping.set()
        self._thread.join(_END_SECONDS)
        self.check()
        if self._thread.is_alive():
            raise TimeoutException(f"{self._name} has not ended within {_END_SECONDS:.0f} s")

    def check(self) -> None:
        """Raises what has ended the thread."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._pause_seconds):
                self.work()
        except BaseException as error:
            self._failure = error
