"""Removes what groups have committed of topics that there are no more.

Kafka: `GroupMetadataManager.handleDeletedPartitions`, `cleanupGroupMetadata`. [TD-03]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from lakelog.replication.errors import LakelogException
from lakelog.replication.storage.cluster import Cluster

logger = logging.getLogger(__name__)


class OffsetRetention:
    """Looks when a topic has gone, and every `offsets.retention.check.interval.ms`: a consumer may commit late."""

    def __init__(self, cluster: Cluster, controller_epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._cause = {"who": "controller", "why": "topics are gone", "controller_epoch": controller_epoch}
        self._clock = clock
        self._due_at = clock()

    def topic_has_gone(self) -> None:
        """The next look is due at once."""
        self._due_at = self._clock()

    def look_if_due(self) -> None:
        """Removes offsets of unknown topics. An error is left to the next look: nothing waits for this."""
        if self._clock() < self._due_at:
            return
        self._due_at = self._clock() + self._cluster.config.offsets_retention_check_interval_ms / 1000
        try:
            self._cluster.groups.forget_all_but(self._topic_ids, self._cause)
        except LakelogException as error:
            logger.warning("offsets of deleted topics stay for now: %s", error)

    def _topic_ids(self) -> set[str]:
        """Read after the offsets were: a topic is there before anybody commits offsets of it."""
        self._cluster.topics.refresh()
        return {topic.topic_id for topic in self._cluster.topics.topics.values()}
