"""Which brokers are alive: those whose heartbeat moves, by the observer's own monotonic clock. [BC-01]

No clocks of two machines are compared. A broker that reports a storage error can neither lead nor follow, so it does
not count as alive. [LI-04]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakelog.replication.protocol.broker_registration import BrokerRegistration


class _Sighting(NamedTuple):
    beat: tuple[int, int]
    seen_at: float


class Liveness:
    """The heartbeats that an observer has seen. `clock`: monotonic, in seconds. Kafka: `BrokerHeartbeatManager`."""

    def __init__(self, session_timeout_ms: int, clock: Callable[[], float]) -> None:
        self._session_timeout = session_timeout_ms / 1000
        self._clock = clock
        self._sightings: dict[int, _Sighting] = {}

    def look(self, brokers: Mapping[int, BrokerRegistration]) -> set[int]:
        """Records the heartbeats; returns the brokers that are alive and not shutting down.

        A broker counts as alive when it is first seen. A storage error makes it count as dead while it reports one.
        """
        now = self._clock()
        for broker, registration in brokers.items():
            beat = (registration.broker_epoch, registration.heartbeat)
            if broker not in self._sightings or self._sightings[broker].beat != beat:
                self._sightings[broker] = _Sighting(beat, now)
        return {b for b, r in brokers.items() if self._lives(b, r, now) and not r.shutting_down}

    def leaving(self, brokers: Mapping[int, BrokerRegistration]) -> set[int]:
        """The brokers that are alive and shutting down, by the last look."""
        now = self._clock()
        return {b for b, r in brokers.items() if b in self._sightings and self._lives(b, r, now) and r.shutting_down}

    def _lives(self, broker: int, registration: BrokerRegistration, now: float) -> bool:
        is_seen = self._sightings[broker].seen_at >= now - self._session_timeout
        return is_seen and registration.storage_error is None
