"""How a broker stands in the cluster: its registrations, one broker epoch after the other, and its heartbeats. [BC-01]

Heartbeats come from a thread of their own: none may fall between a new epoch in the table and in this process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException, StaleBrokerEpochException
from lakelog.replication.protocol.broker_registration import BrokerRegistration, LogIdentity
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_identity import continues, identify
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable

logger = logging.getLogger(__name__)


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

    def register(self, log: ReplicaLog, seen: int = 0) -> int:
        """A new broker epoch, with a log that works, above `seen`. A log that is not the one registered before, or
        lacks some of it, begins with this epoch. Raises StaleBrokerEpochException if a newer process has one."""
        found = identify(log)

        def build(last: BrokerRegistration | None) -> BrokerRegistration:
            if last is None and seen > 0:
                logger.warning(
                    "broker %d: its registration is gone; it registers anew under epoch %d, outside of every ISR",
                    self._config.broker_id, seen + 1,
                )  # fmt: skip
            is_the_same = last is not None and continues(log, last.log)
            return self._next(last, found, is_the_same, None, seen)

        return self._write(build, None)

    def register_without_storage(self, error: str) -> int:
        """A new broker epoch of a broker that has registered before and cannot reach its log. [OL-02]"""

        def build(last: BrokerRegistration | None) -> BrokerRegistration:
            assert last is not None, "who has never registered is refused before"
            return self._next(last, last.log, True, error)

        return self._write(build, error)

    def _next(
        self, last: BrokerRegistration | None, log: LogIdentity, is_the_same: bool, error: str | None, seen: int = 0
    ) -> BrokerRegistration:
        self._check_is_ours(last)
        epoch = max(last.broker_epoch if last else 0, seen) + 1
        self._offered = BrokerRegistration(
            self._config.broker_id, self._root.uri, self._config.broker_rack, epoch, 0, -1, False, error, *log,
            last.log_epoch if last and is_the_same else epoch, last.offline_partitions if last else (),
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

    def beat(self, log: LogIdentity | None, **figures: int | None) -> None:
        """Moves the heartbeat, and says how storage and throttled replication are. Raises StaleBrokerEpochException."""
        self._update("heartbeat", storage_error=self.storage_error, **_known(log), **figures)

    def shutting_down(self, log: LogIdentity | None) -> None:
        """Says that this broker is going. Raises StaleBrokerEpochException."""
        self._update("shutdown", shutting_down=True, **_known(log))

    @contextmanager
    def noting_storage_errors(self) -> Iterator[None]:
        """Keeps an error of the block as the reason that heartbeats give, and raises it: an operator acts on the newest
        reason, not on the first."""
        try:
            yield
        except (LakelogException, OSError) as error:
            self.storage_error = f"{type(error).__name__}: {error}"
            raise

    def _update(self, why: str, **changes: object) -> None:
        with self._lock:
            self.check_not_fenced()
            assert self._epoch is not None, "who has not registered has nothing to say"
            self.table.update(self._epoch, why, **changes)


def epoch_seen(broker_id: int, log: ReplicaLog, partitions: Iterable[PartitionRegistration]) -> int:
    """The newest broker epoch of an id that its log and the metadata tell of, 0 if there is none.

    Its registration may be gone. Were its epochs to begin again below that, its own log would take it for an older
    process, and as a member of an ISR it would count as the process that had joined it.
    """
    return max((0, log.current().broker_epoch, *(registration.isr_epoch(broker_id) for registration in partitions)))


def _known(log: LogIdentity | None) -> dict[str, str | int]:
    if log is None:
        return {}
    return {"log_table_id": log.table_id, "log_version": log.version, "log_commit": log.commit}
