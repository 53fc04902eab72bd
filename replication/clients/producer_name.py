"""Producers with a name. Kafka: `transactional.id`, `TransactionCoordinator.handleInitProducerId`. KIP-98, KIP-360."""

from __future__ import annotations

import time
import uuid

from lakelog.replication.protocol.producer_identity import ProducerIdentity
from lakelog.replication.storage.cluster import Cluster


class ProducerName:
    """The name of a producer, which gives it its identities. Starting fences the producer that had the name before.

    A name that nobody uses expires. To be used is to be given an identity, so that a producer at work needs another one
    before half of that time has passed. The other half is for a process that stands still in the midst of a send.
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
        """Whether the identity that was given last must not be used for another send. A machine that sleeps may have a
        monotonic clock that stands still, and the time of day may be set back: the one that says more holds."""
        return any(now - used_at >= self._seconds for now, used_at in zip(_now(), self._used_at, strict=True))

    def new_identity(self, deadline: float) -> ProducerIdentity:
        """The next identity. Raises ProducerFencedException if another producer has started under the name."""
        used_at = _now()
        take = self._producers.renew if self._has_started else self._producers.init_producer
        given = take(self._name, self._owner, deadline)
        self._has_started, self._used_at = True, used_at
        return ProducerIdentity(given, None)


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()
