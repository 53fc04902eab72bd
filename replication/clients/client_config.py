"""The settings of producers and consumers: each is a field, checked by its type when the client is made. The names and
meanings are those of Kafka's `ProducerConfig` and `ConsumerConfig`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import Boolean, Choice, Integer, IntegerOrDefault, OptionalText, ValueType, faults
from lakelog.replication.protocol.partition_assignor import ASSIGNORS

_LONGEST_INSTANCE_ID = 249
_HEARTBEAT_MS, _HEARTBEAT_IN_A_STORE_MS = 3_000, 10_000


def client_key(default: Any, type: ValueType) -> Any:
    """A field of a `ClientConfig`: `linger_ms` is the key `linger.ms`."""
    return field(default=default, metadata={"type": type})


@dataclass(frozen=True)
class ClientConfig:
    """Settings of one client. Raises InvalidConfigurationException, which lists every value that is not allowed."""

    def __post_init__(self) -> None:
        """Checks every value, and those that are not allowed together."""
        problems = faults(self) or self._contradictions()
        if problems:
            who = type(self).__name__.removesuffix("Config").lower()
            raise InvalidConfigurationException(f"{who}: {'; '.join(problems)}")

    def _contradictions(self) -> list[str]:
        """The faults of values that are allowed one by one, but not together."""
        return []


@dataclass(frozen=True)
class ProducerConfig(ClientConfig):
    """Times are in ms, sizes in bytes; the key `linger.ms` is the field `linger_ms`.

    `max.in.flight.requests.per.connection`: how many sends are on their way at the same time; a log remembers the last
    five of each producer. `linger.ms`: how long a send, or a single record, waits for others, to share a commit with
    them. `batch.size`: the most bytes of a partition in a commit of several sends, and of single records in one send;
    0: each send has its own commit. `buffer.memory`: the most bytes of the sends and single records that are not
    settled; a larger send waits until it is alone. `max.block.ms`: how long a call waits for that memory.
    `delivery.timeout.ms`: the most time from `produce` until the record is settled; each `send` and `send_async` has a
    time-out of its own.

    Kafka's `batch.size` is 16 KB and its `buffer.memory` 32 MB. Here a commit costs more than a request, and one send
    may have tens of MB.
    """

    max_in_flight_requests_per_connection: int = client_key(5, Integer(1, 5))
    linger_ms: int = client_key(5, Integer(0))
    batch_size: int = client_key(8388608, Integer(0))
    buffer_memory: int = client_key(268435456, Integer(1, 2**63 - 1))
    max_block_ms: int = client_key(60000, Integer(0, 2**63 - 1))
    delivery_timeout_ms: int = client_key(120000, Integer(0))


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


class InstanceId:
    """The name of a static member, by the rule that Kafka has for names of topics. An empty one: no static member."""

    def parse(self, text: str) -> str:
        """The name. Raises ValueError."""
        if text in (".", "..") or not re.fullmatch(f"[a-zA-Z0-9._-]{{0,{_LONGEST_INSTANCE_ID}}}", text):
            raise ValueError(text)
        return text

    def __str__(self) -> str:
        return f"up to {_LONGEST_INSTANCE_ID} letters, digits, dots, - and _, but not . or .. alone"


@dataclass(frozen=True)
class ConsumerConfig(ClientConfig):
    """Times are in ms, sizes in bytes; the key `session.timeout.ms` is the field `session_timeout_ms`.

    `session.timeout.ms`: after so long without a heartbeat the other members take this one for dead, and share out its
    partitions. `heartbeat.interval.ms`: the time between two heartbeats; each is a commit. The default, -1, is 3 s, and
    10 s if the cluster root is in an object store, where each is paid for. `max.poll.interval.ms`: a consumer that does
    not call `poll` for so long leaves its group. `enable.auto.commit`: `poll` commits, every `auto.commit.interval.ms`,
    the offsets after the records that earlier calls have returned; so do `close`, and a `poll` that gives partitions
    up. `auto.offset.reset`: where to start without a committed offset, or if its record is deleted: `latest`,
    `earliest`, or `none` for an error. `partition.assignment.strategy`: names of assignors with commas between them.
    `fetch.max.bytes`: the most bytes that `poll` returns. `client.id`: a name for people. `client.rack`: where the
    consumer is; an in-sync replica there is read, if there is one (KIP-392). `group.instance.id`: the name of a static
    member, which keeps its partitions over a restart within its session (KIP-345).
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
    group_instance_id: str = client_key("", InstanceId())

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
            f"({self.session_timeout_ms}): otherwise others take a live member for dead"
        ]
