"""The producers of a world: shipped producers that remember which records were sent and acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from lakelog.schemas import LOG, PRODUCERS

TOPIC = "flights"
PARTITIONS = 2
PRODUCER = Config.from_properties({"log.segment.bytes": "1024"})


class Interrupted(BaseException):
    """The user has stopped a cell of a notebook."""


@dataclass
class Sent:
    """The records of one send to one partition, and the answer."""

    partition: int
    values: tuple[bytes, ...]
    answer: RecordMetadata | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the answer came and has no error."""
        return self.answer is not None and self.answer.error is None


@dataclass
class StackProducer:
    """A producer with acks=all, and all records that it has sent."""

    name: str
    cluster: str
    outage: str | None = None
    looks: int = 0
    frozen_until: float = 0.0
    is_dead: bool = False
    keeps_records: bool = False
    padding: bytes = b""
    is_sending: bool = False
    sent: list[Sent] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))
    _producer: Producer | None = None

    def may_write(self, uri: str) -> bool:
        """It may write brokers' logs and the `producers` table."""
        return f"/{LOG.name}/" in uri or uri.startswith(f"{self.cluster}/{PRODUCERS.name}/")

    def die(self) -> bool:
        """Interrupts the send instead of ending the process: the user goes on with the same producer."""
        raise Interrupted

    def step(self, rng: random.Random) -> None:
        """One send to one partition or both. After an error the same producer goes on with other records."""
        if self.is_sending:
            return
        counts = [rng.randrange(4) for _ in range(PARTITIONS)]
        self.send({number: count for number, count in enumerate(counts) if count}, rng.choice([1000, 4000, 12_000]))

    def send(self, counts: dict[int, int], timeout_ms: int = 30_000) -> bool:
        """Sends `counts` records, by partition. Returns whether all were acknowledged."""
        batches = [Sent(p, tuple(self._value() for _ in range(count))) for p, count in counts.items()]
        self.sent += batches
        records = {
            "value": [value for batch in batches for value in batch.values],
            "partition": [batch.partition for batch in batches for _ in batch.values],
        }
        self.is_sending = True
        try:
            self._producer = self._producer or Producer(self.cluster, "all", config=PRODUCER)
            answers = self._producer.send(TOPIC, pa.table(records), timeout_ms) if batches else {}
        except (LakelogException, Interrupted):
            return False
        finally:
            self.is_sending = False
        for batch in batches:
            batch.answer = answers[batch.partition]
        return all(batch.is_acknowledged for batch in batches)

    def _value(self) -> bytes:
        return f"{self.name}-{next(self._numbers)}-".encode() + self.padding
