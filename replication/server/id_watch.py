"""Checks that a broker's id is free: the heartbeat of the process that registered last must stand still. [BC-01]

Fencing does not depend on this check: if two processes with one id run, the broker epoch lets only the newer one write.
But without the check, two supervisors that start the same broker would end each other's process again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from lakelog.replication.errors import (
    DuplicateBrokerRegistrationException,
    InconsistentClusterRootException,
    KafkaStorageException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.root_probe import prepare_root, seems_formatted
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable

# A live process moves its heartbeat at each interval. The newcomer fences a slower one, as usual. Started again, that
# one sees the newcomer's heartbeat and refuses to start.
_INTERVALS = 2


class IdWatch:
    """Reads the registration when it is constructed and again in `wait`: the time in between counts as waiting.

    `is_registered_here` says whether the broker's last registration has this very root. With `take_over` the id is free
    at once, even if another process is running.
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
        """Returns once the heartbeat has stood still: for two heartbeat intervals if the root is the same, else for the
        session time-out. Returns at once if the last process has announced its shutdown.

        Raises DuplicateBrokerRegistrationException as soon as the heartbeat moves.
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


def check_cluster_root(cluster: Cluster, root: StorageRoot) -> None:
    """Raises InconsistentClusterRootException, before anything is written, if an earlier process of the broker at this
    root has seen another cluster root, or a later state of it. A root that does not work says nothing yet."""
    try:
        cluster.expect_what_was_seen(root)
    except InconsistentClusterRootException:
        raise
    except KafkaStorageException:
        return


def prepare_start(cluster: Cluster, broker_id: int, root_uri: str, take_over: bool = False) -> IdWatch:
    """Formats a broker's root if it is empty, and returns the watch to hand to `Broker`.

    It formats nothing for a broker that may not start, or whose store cannot hold commits. For a broker that returns to
    its own root, this returns before the wait is over, so that the process can start Spark meanwhile. Raises
    DuplicateBrokerRegistrationException if another process with this id is running, InvalidConfigurationException as
    `check_conditional_put`, and what `check_cluster_root` and `prepare_root` raise.
    """
    check_cluster_root(cluster, cluster.storage_of(broker_id, root_uri))
    for root in (cluster.root, cluster.storage_of(broker_id, root_uri)):
        with suppress(KafkaStorageException):  # a broker may start with a root that does not work now
            check_conditional_put(root)
    watch = IdWatch(cluster, broker_id, root_uri, take_over)
    if not (watch.is_registered_here and seems_formatted(cluster.storage_of(broker_id, root_uri))):
        watch.wait()
    prepare_root(cluster, broker_id, root_uri)
    return watch
