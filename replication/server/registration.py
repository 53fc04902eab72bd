"""How a broker stands in the cluster: its registrations, one broker epoch after the other, and its heartbeats. [BC-01]

Heartbeats come from a thread of their own: none may fall between a new epoch in the table and in this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from replication.config import Config
from replication.errors import StaleBrokerEpochException
from replication.storage.broker_table import BrokerRegistration, BrokerTable
from replication.storage.filesystem import StorageRoot
from replication.storage.replica_log import ReplicaLog


class Registration:
    """The row of one broker, as the process sees to it that runs the broker. Kafka: `BrokerLifecycleManager`.

    `storage_error`: what every heartbeat says is wrong with the root; None if nothing is.
    """

    def __init__(self, table: BrokerTable, root: StorageRoot, config: Config) -> None:
        self.table = table
        self.storage_error: str | None = None
        self._root = root
        self._config = config
        self._lock = threading.RLock()
        self._epoch: int | None = None
        self._offered: BrokerRegistration | None = None

    def register(self, log: ReplicaLog) -> int:
        """A new broker epoch, with a log that works. Raises StaleBrokerEpochException if a newer process has one."""
        version = log.current().version

        def build(last: BrokerRegistration | None) -> BrokerRegistration:
            was_lost = last is not None and (last.log_table_id != log.table_id or last.log_version > version)
            return self._next(last, log.table_id, version, was_lost, None)

        return self._write(build, None)

    def register_without_storage(self, error: str) -> int:
        """A new broker epoch of a broker that has registered before and cannot reach its log. [OL-02]"""

        def build(last: BrokerRegistration | None) -> BrokerRegistration:
            assert last is not None, "who has never registered is refused before"
            return self._next(last, last.log_table_id, last.log_version, last.log_was_lost, error)

        return self._write(build, error)

    def _next(
        self, last: BrokerRegistration | None, log_table_id: str, log_version: int, was_lost: bool, error: str | None
    ) -> BrokerRegistration:
        self._check_is_ours(last)
        self._offered = BrokerRegistration(
            self._config.broker_id, self._root.uri, self._config.broker_rack, last.broker_epoch + 1 if last else 1,
            0, -1, False, error, log_table_id, log_version, was_lost, last.offline_partitions if last else (),
        )  # fmt: skip
        return self._offered

    def _write(self, build: Callable[[BrokerRegistration | None], BrokerRegistration], error: str | None) -> int:
        with self._lock:
            self._epoch = self.table.register(build).broker_epoch
            self.storage_error = error
            return self._epoch

    def _check_is_ours(self, last: BrokerRegistration | None) -> None:
        """From the first registration on the row is this process's, also where it has got no answer to its offer."""
        if last is not None and last == self._offered:
            self._epoch = last.broker_epoch
        if self._epoch is not None and last is not None and last.broker_epoch != self._epoch:
            raise StaleBrokerEpochException(
                f"broker {self._config.broker_id}: epoch {self._epoch} is fenced: "
                f"a newer process has registered under epoch {last.broker_epoch}"
            )

    def check_not_fenced(self) -> None:
        """Raises StaleBrokerEpochException if a newer process has registered, whatever has become of the root."""
        with self._lock:
            self.table.refresh()
            self._check_is_ours(self.table.registration)

    def beat(self, log_version: int | None, **figures: int | None) -> None:
        """Moves the heartbeat, and says how storage and throttled replication are. Raises StaleBrokerEpochException."""
        known = {} if log_version is None else {"log_version": log_version}
        self._update("heartbeat", storage_error=self.storage_error, **known, **figures)

    def shutting_down(self) -> None:
        """Says that this broker is going. Raises StaleBrokerEpochException."""
        self._update("shutdown", shutting_down=True)

    def _update(self, why: str, **changes: object) -> None:
        with self._lock:
            self.check_not_fenced()
            assert self._epoch is not None, "who has not registered has nothing to say"
            self.table.update(self._epoch, why, **changes)
