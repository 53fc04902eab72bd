"""A producer that never stops. Each record is a number that it sends once, so lost and repeated records can be
counted."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.verification.faults.repeated_work import RepeatedWork


class AcknowledgedRecord(NamedTuple):
    """An acknowledged record and its place."""

    partition: int
    offset: int
    number: int


class NumberSender:
    """Sends each number once with acks=all, and remembers the acknowledged ones. `timeout_ms` is in ms.

    The remainder of a number is its partition. A record without acknowledgement may be in the log or not.
    """

    def __init__(
        self, cluster_uri: str, topic: str, partitions: int, first: int, timeout_ms: int, config: Config | None = None
    ) -> None:
        self.sent = 0
        self.acknowledged: list[AcknowledgedRecord] = []
        self.errors: Counter[str] = Counter()
        self._producer = Producer(cluster_uri, acks="all", config=config)
        self._topic = topic
        self._partitions = partitions
        self._next = first
        self._timeout_ms = timeout_ms

    def probe(self) -> bool:
        """Sends a number, always to the same partition. Returns whether it was acknowledged."""
        number, self._next = self._next, self._next + self._partitions
        return self._send([number])

    def _send(self, numbers: Sequence[int]) -> bool:
        self.sent += len(numbers)
        partitions = [number % self._partitions for number in numbers]
        values = pa.array([str(number).encode() for number in numbers], pa.binary())
        records = pa.table({"value": values, "partition": pa.array(partitions, pa.int32())})
        try:
            answers = self._producer.send(self._topic, records, self._timeout_ms)
        except LakelogException as error:
            self.errors[error.name] += len(numbers)
            return False
        for partition, answer in answers.items():
            own = [number for number in numbers if number % self._partitions == partition]
            if answer.error is None:
                placed = enumerate(own, answer.base_offset)
                self.acknowledged += [AcknowledgedRecord(partition, offset, number) for offset, number in placed]
            else:
                self.errors[answer.error.name] += len(own)
        return all(answer.error is None for answer in answers.values())


class NumberProducer(NumberSender, RepeatedWork):
    """Sends numbers from `first` on, in batches of `batch` numbers.

    With a long timeout it waits for brokers that are away. With a short one it keeps appending, so followers have
    records to catch up with.
    """

    def __init__(
        self, cluster_uri: str, topic: str, partitions: int, first: int, batch: int, timeout_ms: int,
        config: Config | None = None,
    ) -> None:  # fmt: skip
        NumberSender.__init__(self, cluster_uri, topic, partitions, first, timeout_ms, config)
        RepeatedWork.__init__(self, f"producer of {topic} from {first} on")
        self._batch = batch

    def work(self) -> None:
        """Sends a batch."""
        self._next += self._batch
        self._send(range(self._next - self._batch, self._next))
