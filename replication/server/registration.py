"""Registers a broker, if its id is free, each time under a new broker epoch, and writes its heartbeats. [BC-01]

Heartbeats come from a thread of their own. The lock ensures that none is written after the table has a new epoch and
before this process has it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from lakelog.replication.config import Config
from lakelog.replication.errors import (
    DuplicateBrokerRegistrationException,
    InconsistentClusterRootException,
    KafkaStorageException,
    LakelogException,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration, LogIdentity
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.conditional_put import check_conditional_put
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_identity import continues, identify
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_probe import prepare_root, seems_formatted
from lakelog.replication.storage.tables.broker_table import BrokerTable, fenced

logger = logging.getLogger(__name__)

# A live process moves its heartbeat at each interval. The newcomer fences a slower one, as usual. Started again, that
# one sees the newcomer's heartbeat and refuses to start.
_INTERVALS = 2


class Registration:
    """The row of one broker in `brokers`, written by the broker's own process. Kafka: `BrokerLifecycleManager`.

    `storage_error` is the error of the root that every heartbeat reports; None if the root works.
    """

    def __init__(self, table: BrokerTable, root: StorageRoot, config: Config) -> None:
        self.table = table
        self.storage_error: str | None = None
        self._root = root
        self._config = config
        self._lock = threading.RLock()
        self._epoch: int | None = None
        self._incarnation_id = uuid.uuid4().hex
        self._offered: BrokerRegistration | None = None

    @property
    def log_epoch(self) -> int:
        """The broker epoch since which the broker has its log, by the registration of this process."""
        return self._offered.log_epoch if self._offered else 0

    def register(self, log: ReplicaLog, seen: int = 0, generation: int = 0) -> int:
        """Registers with a log that works. Returns the new broker epoch, which is above `seen`, and above the
        `generation` of the cluster root: only logs from before its first recovery have log epoch 1.

        If another log was registered before, or this log lacks part of it, the row's log epoch is the new epoch.
        Raises StaleBrokerEpochException if a newer process has registered.
        """
        found = identify(log)

        def build(last: BrokerRegistration | None) -> BrokerRegistration:
            if last is None and seen > 0:
                logger.warning(
                    "broker %d: its registration is gone; it registers anew under epoch %d, outside of every ISR",
                    self._config.broker_id, seen + 1,
                )  # fmt: skip
            is_the_same = last is not None and continues(log, last.log)
            return self._next(last, found, is_the_same, None, max(seen, generation))

        return self._write(build, None)

    def register_without_storage(self, error: str) -> int:
        """Registers a broker that has registered before and cannot reach its log. Returns the new broker epoch.

        Raises StaleBrokerEpochException if a newer process has registered. [OL-02]
        """

        def build(last: BrokerRegistration | None) -> BrokerRegistration:
            assert last is not None, "a broker that has never registered is refused earlier"
            return self._next(last, last.log, True, error)

        return self._write(build, error)

    def _next(
        self, last: BrokerRegistration | None, log: LogIdentity, is_the_same: bool, error: str | None, seen: int = 0
    ) -> BrokerRegistration:
        self._check_is_ours(last)
        epoch = max(last.broker_epoch if last else 0, seen) + 1
        self._offered = BrokerRegistration(
            self._config.broker_id, self._root.uri, self._config.broker_rack, epoch, -1, False, error, *log,
            last.log_epoch if last and is_the_same else epoch, last.offline_partitions if last else (),
            incarnation_id=self._incarnation_id,
        )  # fmt: skip
        return self._offered

    def _write(self, build: Callable[[BrokerRegistration | None], BrokerRegistration], error: str | None) -> int:
        with self._lock:
            self._epoch = self.table.register(build).broker_epoch
            self.storage_error = error
            return self._epoch

    def _check_is_ours(self, last: BrokerRegistration | None) -> None:
        """Raises StaleBrokerEpochException if the row is a newer process's. It is ours too if a reply was lost."""
        if last is not None and last == self._offered:
            self._epoch = last.broker_epoch
        if self._epoch is not None and last is not None and last.broker_epoch != self._epoch:
            raise fenced(last, self._epoch)

    def check_not_fenced(self) -> None:
        """Raises StaleBrokerEpochException if a newer process has registered, or the broker was unregistered. It does
        not need the broker's root. In an object store it may find out some seconds later; a write finds out at once."""
        with self._lock:
            self.table.refresh(LONGEST_SECONDS)
            self._check_is_ours(self.table.fence)

    def beat(self, log: LogIdentity | None, **figures: int | None) -> None:
        """Writes a heartbeat with the storage error, the log's identity and `figures`, which are columns of `brokers`.

        Raises StaleBrokerEpochException if a newer process has registered.
        """
        self._update("heartbeat", storage_error=self.storage_error, **_known(log), **figures)

    def shutting_down(self, log: LogIdentity | None) -> None:
        """Marks the row as shutting down. Raises StaleBrokerEpochException if a newer process has registered."""
        self._update("shutdown", shutting_down=True, **_known(log))

    @contextmanager
    def noting_storage_errors(self) -> Iterator[None]:
        """Keeps an error of the block as `storage_error` and raises it again, so that operators see the newest one."""
        try:
            yield
        except (LakelogException, OSError) as error:
            self.storage_error = f"{type(error).__name__}: {error}"
            raise

    def _update(self, why: str, **changes: object) -> None:
        with self._lock:
            self.check_not_fenced()
            assert self._epoch is not None, "a broker registers before it updates its row"
            self.table.heartbeat(self._epoch, why, **changes)


def epoch_seen(broker_id: int, log: ReplicaLog, partitions: Iterable[PartitionRegistration]) -> int:
    """The newest broker epoch of an id in its log and in the metadata; 0 if neither has one.

    The registration may be gone. If epochs then began again below this one, the broker's own log would fence it as an
    older process, and the controller would take it for the process that once joined an ISR.
    """
    return max((0, log.current().broker_epoch, *(registration.isr_epoch(broker_id) for registration in partitions)))


def _known(log: LogIdentity | None) -> dict[str, str | int]:
    if log is None:
        return {}
    return {"log_table_id": log.table_id, "log_version": log.version, "log_commit": log.commit}


class IdWatch:
    """Checks that a broker's id is free: the heartbeat of the process that registered last must stand still. [BC-01]

    Fencing does not depend on this check: if two processes with one id run, the broker epoch lets only the newer one
    write. But without the check, two supervisors that start the same broker would end each other's process again and
    again.

    It reads the registration when it is constructed and again in `wait`: the time in between counts as waiting.

    `is_registered_here`: whether the broker's last registration has this very root. With `take_over` the id is free
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
        # A write that was under way when the last process was killed may lie at one of several roots, and be seen
        # later.
        self._may_move_once = len(cluster.root.parts) > 1

    def wait(self, stopping: threading.Event | None = None) -> None:
        """Returns once the heartbeat has stood still: for two heartbeat intervals if the root is the same, else for the
        session time-out. Returns at once if the last process has announced its shutdown.

        Raises DuplicateBrokerRegistrationException as soon as the heartbeat moves; with several cluster roots, as soon
        as it moves twice.
        """
        pause = stopping or threading.Event()
        while not self._is_free and self._seen is not None and self._table is not None:
            self._table.refresh()
            self._table.read_sign()
            now = self._table.registration
            if now is None or now.shutting_down:
                self._is_free = True
            elif (
                _beat(now) != _beat(self._seen) and now.broker_epoch == self._seen.broker_epoch and self._may_move_once
            ):
                self._may_move_once, self._seen, self._seen_at = False, now, self._clock()
            elif _beat(now) != _beat(self._seen):
                raise DuplicateBrokerRegistrationException(
                    f"broker {self._broker_id} is at work at {now.root}: its heartbeat moves; stop it first, use "
                    "another id, or start this one with --take-over"
                )
            elif self._clock() - self._seen_at >= self._timeout():
                self._is_free = True
            else:
                pause.wait(self._config.lakelog_poll_interval_ms / 1000)

    def _timeout(self) -> float:
        config = self._config
        interval, session = config.broker_heartbeat_interval_ms, config.broker_session_timeout_ms
        return (min(_INTERVALS * interval, session) if self.is_registered_here else session) / 1000


def _beat(registration: BrokerRegistration) -> tuple[int, int]:
    return registration.broker_epoch, registration.heartbeat


def check_cluster_root(cluster: Cluster, root: StorageRoot) -> None:
    """Raises InconsistentClusterRootException, before anything is written, if an earlier process of the broker at this
    root has seen another cluster root, or a later state of it. A root that does not work is not checked yet."""
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
