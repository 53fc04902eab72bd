"""Removes producer names that have been unused for `transactional.id.expiration.ms`.

Kafka: `TransactionStateManager.removeExpiredTransactionalIds`. KIP-98. [AP-06]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from lakelog.replication.errors import LakelogException
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.state_table import Row

logger = logging.getLogger(__name__)


class ProducerExpiration:
    """Checks every `transaction.remove.expired.transaction.cleanup.interval.ms` which names were unused since.

    The rows keep the unused time in ms, so that the next controller continues from there.
    """

    def __init__(self, cluster: Cluster, controller_epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._cause = {"who": "controller", "why": "names expire", "controller_epoch": controller_epoch}
        self._clock = clock
        self._due_at = self._looked_at = clock()
        self._seen: Mapping[str, Row] = {}

    def look_if_due(self) -> None:
        """If a check is due, adds the time since the last one to the unused names, and removes expired names. It logs
        an error, and the next check tries again."""
        now, config = self._clock(), self._cluster.config
        if now < self._due_at:
            return
        self._due_at = now + config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        passed_ms = int((now - self._looked_at) * 1000)
        try:
            self._seen = self._cluster.producers.expire(
                self._seen, passed_ms, config.transactional_id_expiration_ms, self._cause
            )
        except LakelogException as error:
            logger.warning("names of producers that nobody uses stay for now: %s", error)
        else:
            self._looked_at = self._clock()
