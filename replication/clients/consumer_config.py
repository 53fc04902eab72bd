"""The settings of a consumer that subscribes. The names and meanings are those of Kafka's `ConsumerConfig`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lakelog.replication.clients.client_config import ClientConfig, client_key
from lakelog.replication.properties import Boolean, Choice, Integer, IntegerOrDefault, OptionalText
from lakelog.replication.protocol.partition_assignor import ASSIGNORS

_HEARTBEAT_MS, _HEARTBEAT_IN_A_STORE_MS = 3_000, 10_000


class Assignors:
    """Names of assignors with commas between them, the best one first."""

    def parse(self, text: str) -> tuple[str, ...]:
        """The names. Raises ValueError for one that there is not, or that is given twice."""
        names = tuple(text.split(","))
        if not set(names) <= set(ASSIGNORS) or len(set(names)) < len(names):
            raise ValueError(text)
        return names

    def __str__(self) -> str:
        return f"one or more of {','.join(ASSIGNORS)}"


@dataclass(frozen=True)
class ConsumerConfig(ClientConfig):
    """Times are in ms, sizes in bytes; the key `session.timeout.ms` is the field `session_timeout_ms`.

    `session.timeout.ms`: after so long without a heartbeat the other members take this one for dead, and share out its
    partitions. `heartbeat.interval.ms`: the time between two heartbeats; each is a commit. The default, -1, is 3 s, and
    10 s if the cluster root is in an object store, where each is paid for. `max.poll.interval.ms`: a
    consumer that does not call `poll` for so long leaves its group. `enable.auto.commit`: `poll` commits, every
    `auto.commit.interval.ms`, the offsets after the records that earlier calls have returned; so do `close`, and a
    `poll` that gives partitions up. `auto.offset.reset`: where to start without a committed offset, or if its record is
    gone: `latest`, `earliest`, or `none` for an error. `partition.assignment.strategy`: names of assignors with commas
    between them. `fetch.max.bytes`: the most bytes that `poll` returns. `client.id`: a name for people.
    `client.rack`: where the consumer is; an in-sync replica there is read, if there is one (KIP-392).
    """

    client_id: str = client_key("", OptionalText())
    session_timeout_ms: int = client_key(45000, Integer(100))
    heartbeat_interval_ms: int = client_key(-1, IntegerOrDefault(10))
    max_poll_interval_ms: int = client_key(300000, Integer(1))
    enable_auto_commit: bool = client_key(True, Boolean())
    auto_commit_interval_ms: int = client_key(5000, Integer(0))
    auto_offset_reset: str = client_key("latest", Choice("latest", "earliest", "none"))
    partition_assignment_strategy: str = client_key("range,cooperative-sticky", Assignors())
    fetch_max_bytes: int = client_key(52428800, Integer(1))
    client_rack: str = client_key("", OptionalText())

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors, the best one first."""
        return Assignors().parse(self.partition_assignment_strategy)

    def with_heartbeat(self, is_local: bool) -> ConsumerConfig:
        """Fills in the heartbeat interval if it is not set: a third of the session at most. `is_local`: the cluster
        root is on a disk."""
        usual = _HEARTBEAT_MS if is_local else _HEARTBEAT_IN_A_STORE_MS
        if self.heartbeat_interval_ms >= 0:
            return self
        return replace(self, heartbeat_interval_ms=min(usual, self.session_timeout_ms // 3))

    def _contradictions(self) -> list[str]:
        if self.heartbeat_interval_ms * 2 < self.session_timeout_ms:
            return []
        return [
            f"heartbeat_interval_ms is {self.heartbeat_interval_ms}, it must be below half of session_timeout_ms "
            f"({self.session_timeout_ms}): else a living member looks dead"
        ]
