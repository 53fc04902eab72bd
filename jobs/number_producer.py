"""A producer that never stops: every record is a number that is sent once, so that none can be missed or doubled."""

import threading
from collections import Counter
from typing import NamedTuple

import pyarrow as pa

from replication.clients.producer import Producer
from replication.errors import LakelogException


class Acknowledged(NamedTuple):
    """A record that the producer was told is safe, and where."""

    partition: int
    offset: int
    number: int


class NumberProducer:
    """Sends numbers from `first` on with acks=all in a thread of its own, and remembers what was acknowledged.

    With a long timeout it waits for brokers that are away; with a short one it goes on to append, so that followers
    have something to catch up with.
    """

    def __init__(self, cluster_uri: str, topic: str, partitions: int, first: int, batch: int, timeout_ms: int) -> None:
        self.sent = 0
        self.acknowledged: list[Acknowledged] = []
        self.errors: Counter[str] = Counter()
        self._producer = Producer(cluster_uri, acks="all")
        self._topic = topic
        self._partitions = partitions
        self._next = first
        self._batch = batch
        self._timeout_ms = timeout_ms
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="number-producer", daemon=True)

    def start(self) -> None:
        """Begins to send."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the batch that is under way. Raises what no producer should meet."""
        self._stopping.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises what has ended the thread."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._send(range(self._next, self._next + self._batch))
        except BaseException as error:
            self._failure = error

    def _send(self, numbers: range) -> None:
        """Sends each number once only, whatever comes of it: what was not acknowledged may be there or not."""
        self._next = numbers.stop
        self.sent += len(numbers)
        partitions = [number % self._partitions for number in numbers]
        values = pa.array([str(number).encode() for number in numbers], pa.binary())
        records = pa.table({"value": values, "partition": pa.array(partitions, pa.int32())})
        try:
            answers = self._producer.send(self._topic, records, self._timeout_ms)
        except LakelogException as error:
            self.errors[error.name] += len(numbers)
            return
        for partition, answer in answers.items():
            own = [number for number in numbers if number % self._partitions == partition]
            if answer.error is None:
                placed = enumerate(own, answer.base_offset)
                self.acknowledged += [Acknowledged(partition, offset, number) for offset, number in placed]
            else:
                self.errors[answer.error.name] += len(own)
