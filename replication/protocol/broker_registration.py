"""A broker's registration, which it publishes again with each heartbeat, and which brokers are alive by that.
[BC-01]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lakelog.replication.protocol.record_batch import TopicIdPartition


class LogIdentity(NamedTuple):
    """A log table, one of its versions, and the unique id of that version's commit ("" if it is not known)."""

    table_id: str
    version: int
    commit: str


@dataclass(frozen=True)
class BrokerRegistration:
    """Where a broker keeps its log, and its heartbeat: a number that changes as long as the broker is alive. Rows that
    differ in the heartbeat alone are equal.

    `log_epoch`: the broker epoch under which it first registered with this log. It rises each time the log is lost. A
    member that joined an ISR before that lacks the records it had then. [LI-04]

    `offline_partitions`: `<topic id>/<partition>` of each replica with a broken file. Quotas and rates are in bytes/s;
    a quota of None is no limit. `divergences`: how often a log differed from its leader's under equal epochs.
    `incarnation_id`: a random id of the process, so that none takes another's row for its own. Kafka:
    `BrokerRegistrationRequest`.
    """

    broker_id: int
    root: str
    rack: str | None
    broker_epoch: int
    metadata_version: int
    shutting_down: bool
    storage_error: str | None
    log_table_id: str
    log_version: int
    log_commit: str = ""
    log_epoch: int = 0
    offline_partitions: tuple[str, ...] = ()
    leader_replication_quota: int | None = None
    leader_replication_rate: int | None = None
    follower_replication_quota: int | None = None
    follower_replication_rate: int | None = None
    divergences: int | None = None
    incarnation_id: str = ""
    heartbeat: int = field(default=0, compare=False)

    @property
    def log(self) -> LogIdentity:
        """The log as of the last heartbeat."""
        return LogIdentity(self.log_table_id, self.log_version, self.log_commit)

    @property
    def offline(self) -> frozenset[TopicIdPartition]:
        """The partitions whose replica on this broker has a broken file. [OL-01]"""
        parts = (text.rpartition("/") for text in self.offline_partitions)
        return frozenset(TopicIdPartition(topic_id, int(number)) for topic_id, _, number in parts)


class _Sighting(NamedTuple):
    beat: tuple[int, int]
    seen_at: float


class Liveness:
    """The heartbeats that an observer has seen. A broker is alive while its heartbeat moves, by the observer's own
    monotonic `clock`, in seconds. So no clocks of two machines are compared.

    A broker that reports a storage error can neither lead nor follow, so it does not count as alive. [LI-04] Kafka:
    `BrokerHeartbeatManager`.
    """

    def __init__(self, session_timeout_ms: int, clock: Callable[[], float]) -> None:
        self._session_timeout = session_timeout_ms / 1000
        self._clock = clock
        self._sightings: dict[int, _Sighting] = {}

    def observe(self, brokers: Mapping[int, BrokerRegistration]) -> set[int]:
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
        """The brokers that are alive and shutting down, by the last observation."""
        now = self._clock()
        return {b for b, r in brokers.items() if b in self._sightings and self._lives(b, r, now) and r.shutting_down}

    def _lives(self, broker: int, registration: BrokerRegistration, now: float) -> bool:
        is_seen = self._sightings[broker].seen_at >= now - self._session_timeout
        return is_seen and registration.storage_error is None
