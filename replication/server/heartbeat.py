"""Shows that a broker lives, on a thread of its own: taking up many roles must not look like death. [BC-01]"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from replication.errors import LakelogException, StaleBrokerEpochException
from replication.server.gate import BrokerKilled, Gate

logger = logging.getLogger(__name__)


class Heartbeat:
    """Calls `beat` again and again until it is stopped or fenced. Kafka: `BrokerLifecycleManager`."""

    def __init__(self, name: str, interval_ms: int, gate: Gate, beat: Callable[[], object]) -> None:
        self._name = name
        self._interval = interval_ms / 1000
        self._gate = gate
        self._beat = beat
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it, after the beat that is under way."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                self._gate.pass_through()
                self._beat()
            except (BrokerKilled, StaleBrokerEpochException):
                return  # the broker's own thread finds it out by itself
            except (LakelogException, OSError) as error:
                logger.warning("%s: no heartbeat: %s", self._name, error)
