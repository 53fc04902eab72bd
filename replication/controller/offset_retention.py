"""Removes the committed offsets of deleted topics.

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
    """Checks after each deletion, and every `offsets.retention.check.interval.ms`, as a consumer may commit late."""

    def __init__(self, cluster: Cluster, controller_epoch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._cause = {"who": "controller", "why": "topics are gone", "controller_epoch": controller_epoch}
        self._clock = clock
        self._due_at = clock()

    def topic_has_gone(self) -> None:
        """Makes the next check due at once."""
        self._due_at = self._clock()

    def look_if_due(self) -> None:
        """If a check is due, removes offsets of unknown topics. It logs an error, and the next check tries again."""
        if self._clock() < self._due_at:
            return
        self._due_at = self._clock() + self._cluster.config.offsets_retention_check_interval_ms / 1000
        try:
            self._cluster.groups.forget_all_but(self._topic_ids, self._cause)
        except LakelogException as error:
            logger.warning("offsets of deleted topics stay for now: %s", error)

    def _topic_ids(self) -> set[str]:
        """The ids of all topics, read after the offsets: a topic exists before any consumer commits its offsets."""
        self._cluster.topics.refresh()
        return {topic.topic_id for topic in self._cluster.topics.topics.values()}
