"""The thread that sends the heartbeats of a member. Kafka: `AbstractCoordinator.HeartbeatThread`. [AP-04]"""

from __future__ import annotations

import logging
import threading
import time

from lakelog.replication.clients.consumer_config import ConsumerConfig
from lakelog.replication.clients.group_membership import GroupMembership
from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import LakelogException, UnknownMemberIdException

logger = logging.getLogger(__name__)


class HeartbeatThread:
    """Sends a heartbeat every `heartbeat.interval.ms`, as long as the consumer calls `poll` often enough. It logs
    errors, and the next heartbeat tries again."""

    def __init__(self, membership: GroupMembership, config: ConsumerConfig) -> None:
        self._membership = membership
        self._config = config
        self._stopping = threading.Event()
        self._polled_at = time.monotonic()
        name = f"lakelog-heartbeat-{membership.group_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def polled(self) -> None:
        """The consumer has called `poll`."""
        self._polled_at = time.monotonic()

    def stop(self) -> None:
        """Ends the thread after the heartbeat that is under way, and waits for it."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        errors = ErrorLog(logger, f"group {self._membership.group_id}: heartbeat")
        while not self._stopping.wait(self._config.heartbeat_interval_ms / 1000):
            try:
                self.work()
                errors.worked()
            except LakelogException as error:
                errors.failed(error)

    def work(self) -> None:
        """One heartbeat. A consumer that hangs leaves the group instead, so that others get its partitions. KIP-62.

        Raises KafkaStorageException.
        """
        passed = (time.monotonic() - self._polled_at) * 1000
        try:
            if passed <= self._config.max_poll_interval_ms:
                self._membership.beat()
            elif self._membership.member:
                logger.warning(
                    "group %s: leaves: poll was not called for %.0f ms, max.poll.interval.ms is %d",
                    self._membership.group_id, passed, self._config.max_poll_interval_ms,
                )  # fmt: skip
                self._membership.leave()
        except UnknownMemberIdException:
            return  # the next poll finds out by itself, and joins again
