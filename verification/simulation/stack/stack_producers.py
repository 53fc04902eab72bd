"""The producers of a world: shipped producers that remember which records were sent and acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables import cluster_copy
from lakelog.schemas import LOG, PRODUCERS
from lakelog.verification.simulation.stack.faulty_store import is_below

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
    cluster_roots: str = ""  # also those that it gets later
    outage: str | None = None
    accesses: int = 0
    frozen_until: float = 0.0
    is_dead: bool = False
    keeps_records: bool = False
    padding: bytes = b""
    in_flight: int = 1
    keys: int = 0
    is_sending: bool = False
    sent: list[Sent] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))
    _producer: Producer | None = None

    def may_write(self, uri: str) -> bool:
        """It may write brokers' logs and the `producers` table. In a quorum it may publish what was decided in any."""
        is_producers = f"/{PRODUCERS.name}/" in uri and f"/{cluster_copy.FOLDER}/" not in uri
        is_of_quorum = bool(self.cluster_roots) and is_below(uri, self.cluster_roots)
        return is_producers or is_of_quorum or f"/{LOG.name}/" in uri

    @property
    def begun(self) -> list[object]:
        """Its shipped producer, if it has one."""
        return [] if self._producer is None else [self._producer]

    @property
    def clusters(self) -> list[Cluster]:
        """The cluster as its shipped producer sees it."""
        return [] if self._producer is None else [self._producer._view.cluster]

    def kill(self) -> None:
        """Ends its process. A send that is under way goes on until its answer, which is dropped."""
        self._producer = None

    def copied(self, name: str) -> StackProducer | None:
        """A copy, as from the image of a virtual machine: it has the same producer id, epoch and sequences, and goes on
        with records of its own. None while records are on their way, because a copy would send the very same ones."""
        if self.is_sending or self._producer is None or self._producer._sender._has_work():
            return None
        made = replace(self, name=name, sent=[], _numbers=iter(range(10**9)), _producer=None)
        made._open()._identity = deepcopy(self._producer._identity)
        return made

    def die(self) -> bool:
        """Interrupts the send instead of ending the process: the user goes on with the same producer."""
        raise Interrupted

    def step(self, rng: random.Random) -> None:
        """One send to one partition or both, or several in flight. After an error the same producer goes on with other
        records."""
        if self.is_sending:
            return
        sends = [self._drawn(rng) for _ in range(self.in_flight)]
        if len(sends) == 1:
            self.send(*sends[0])
        else:
            self.send_together(sends)

    def _drawn(self, rng: random.Random) -> tuple[dict[int, int], int]:
        counts = [rng.randrange(4) for _ in range(PARTITIONS)]
        return {number: count for number, count in enumerate(counts) if count}, rng.choice([1000, 4000, 12_000])

    def send(self, counts: dict[int, int], timeout_ms: int = 30_000) -> bool:
        """Sends `counts` records, by partition. Returns whether all were acknowledged."""
        batches, records = self._records(counts)
        with self._sending():
            answers = self._open().send(TOPIC, records, timeout_ms) if batches else {}
            for batch in batches:
                batch.answer = answers[batch.partition]
        return all(batch.is_acknowledged for batch in batches)

    def send_together(self, sends: Sequence[tuple[dict[int, int], int]]) -> None:
        """Begins all sends, each with its records by partition and its time-out in ms, and waits until none is left.

        After an interruption some may be left, which go on with the next send.
        """
        with self._sending():
            for counts, timeout_ms in sends:
                batches, records = self._records(counts)
                future = self._open().send_async(TOPIC, records, timeout_ms)
                future.add_done_callback(partial(_note, batches))
            self._open().flush()

    def send_what_is_left(self) -> None:
        """Waits for the sends that an interruption has left. If one fails, the leader may refuse those behind it."""
        with self._sending():
            self._open().flush()

    def _records(self, counts: Mapping[int, int]) -> tuple[list[Sent], pa.Table]:
        batches = [Sent(p, tuple(self._value() for _ in range(count))) for p, count in counts.items()]
        self.sent += batches
        values = [value for batch in batches for value in batch.values]
        partitions = pa.array([batch.partition for batch in batches for _ in batch.values], pa.int32())
        columns = {"value": pa.array(values, pa.binary()), "partition": partitions}
        if self.keys:
            columns["key"] = pa.array([key_of(value, self.keys) for value in values], pa.int64()).cast(pa.string())
        return batches, pa.table(columns)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        self.is_sending = True
        try:
            yield
        except (LakelogException, Interrupted):
            pass
        finally:
            self.is_sending = False

    def _open(self) -> Producer:
        self._producer = self._producer or Producer(self.cluster, "all", config=PRODUCER, batch_size=0)
        return self._producer

    def _value(self) -> bytes:
        return f"{self.name}-{next(self._numbers)}-".encode() + self.padding


def key_of(value: bytes, keys: int) -> int:
    """The key of a record of a compacted topic, by its value."""
    return int(value.rstrip(b".").split(b"-")[-2]) % keys


def _note(batches: Sequence[Sent], future: Future[dict[int, RecordMetadata]]) -> None:
    """Keeps the answers of a send, unless it raised."""
    if future.exception() is None:
        for batch in batches:
            batch.answer = future.result()[batch.partition]
