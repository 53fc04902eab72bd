"""Named producers. Kafka: `transactional.id`, `TransactionCoordinator.handleInitProducerId`. KIP-98, KIP-360."""

from __future__ import annotations

import time
import uuid

from lakelog.replication.protocol.producer_identity import ProducerIdAndEpoch
from lakelog.replication.storage.cluster import Cluster


class ProducerName:
    """A producer's name and its identities. The first identity fences the earlier producer of that name.

    A name expires if its producer takes no identity for `transactional.id.expiration.ms`. A working producer takes a
    new identity after half of that time. The other half covers a process that freezes during a send.
    """

    def __init__(self, name: str, cluster: Cluster) -> None:
        self._name = name
        self._producers = cluster.producers
        self._seconds = cluster.config.transactional_id_expiration_ms / 2000
        self._owner = uuid.uuid4().hex
        self._has_started = False
        self._used_at = _now()

    @property
    def needs_new_identity(self) -> bool:
        """Whether the next send needs a new identity. A monotonic clock may stop while a machine sleeps, and the time
        of day may be set back, so the longer of the two times counts."""
        return any(now - used_at >= self._seconds for now, used_at in zip(_now(), self._used_at, strict=True))

    def new_identity(self, deadline: float) -> ProducerIdAndEpoch:
        """The next identity. Raises ProducerFencedException if another producer has started under the name, and
        TimeoutException at the `deadline` (s, monotonic clock)."""
        used_at = _now()
        take = self._producers.renew if self._has_started else self._producers.init_producer
        given = take(self._name, self._owner, deadline)
        self._has_started, self._used_at = True, used_at
        return given


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()
