"""Whether a broker's id is free: whether the heartbeat of the process that was registered last stands still. [BC-01]

Fencing does not depend on it: two processes of one id may run, and the broker epoch lets only the newer one write. But
two supervisors that start the same broker would end each other's process again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lakelog.replication.errors import DuplicateBrokerRegistrationException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.root_probe import is_formatted, prepare_root
from lakelog.replication.storage.tables.broker_table import BrokerTable

# A process that lives moves its heartbeat at each interval. One that is slower than this loses its broker to a
# newcomer, which is fencing as ever; started again, it sees the newcomer's heartbeat and gives way.
_INTERVALS = 2


class IdWatch:
    """Looks at the registration when it is made and again in `wait`: what happens in between need not be waited for.

    `is_registered_here`: whether the broker was registered last at this very root. `take_over`: whether to start
    although another process is at work.
    """

    def __init__(
        self, cluster: Cluster, broker_id: int, root_uri: str, take_over: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._config = cluster.config
        self._broker_id = broker_id
        self._clock = clock
        self._seen_at = clock()
        self._table = BrokerTable.open_if_registered(cluster.root, broker_id)
        self._seen = self._table.registration if self._table else None
        here = cluster.storage_of(broker_id, root_uri).uri
        self.is_registered_here = self._seen is not None and self._seen.root == here
        self._is_free = take_over or self._seen is None

    def wait(self, stopping: threading.Event | None = None) -> None:
        """Returns when the heartbeat has stood still: two intervals where the root is the same, else for the session
        time-out; at once if the last process has said that it shuts down.

        Raises DuplicateBrokerRegistrationException as soon as it moves.
        """
        pause = stopping or threading.Event()
        while not self._is_free and self._seen is not None and self._table is not None:
            self._table.refresh()
            now = self._table.registration
            if now is None or now.shutting_down:
                self._is_free = True
            elif _beat(now) != _beat(self._seen):
                raise DuplicateBrokerRegistrationException(
                    f"broker {self._broker_id} is at work at {now.root}: its heartbeat moves; stop it first, use "
                    "another id, or start this one with --take-over"
                )
            elif self._clock() - self._seen_at >= self._patience():
                self._is_free = True
            else:
                pause.wait(self._config.lakelog_poll_interval_ms / 1000)

    def _patience(self) -> float:
        config = self._config
        interval, session = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
        return (min(_INTERVALS * interval, session) if self.is_registered_here else session) / 1000


def _beat(registration: BrokerRegistration) -> tuple[int, int]:
    return registration.broker_epoch, registration.heartbeat


def prepare_start(cluster: Cluster, broker_id: int, root_uri: str, take_over: bool = False) -> IdWatch:
    """Before a broker starts: formats its root if that is empty, and answers what is to be waited for.

    Nothing is formatted for a broker that may not start. One that returns to its own root is still being watched when
    this returns, so that its process may go on with what takes long. Raises DuplicateBrokerRegistrationException, and
    what `prepare_root` raises.
    """
    watch = IdWatch(cluster, broker_id, root_uri, take_over)
    if not (watch.is_registered_here and is_formatted(cluster.storage_of(broker_id, root_uri))):
        watch.wait()
    prepare_root(cluster, broker_id, root_uri)
    return watch
