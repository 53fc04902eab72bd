"""A producer that never stops. Each record is a number that it sends once, so lost and repeated records can be
counted. And how long it waits."""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException, TimeoutException

_PAUSE_SECONDS = 0.5
_END_SECONDS = 180.0


class Waited(NamedTuple):
    """A time without success, from its begin on the monotonic clock, in seconds."""

    began_s: float
    lasted_s: float


class Waits:
    """How long the successes of a client took, one after another. A wait begins with the first try that fails, and ends
    with the next success. `all`: those that have ended, and what is over of the present one. Times are in seconds."""

    def __init__(self) -> None:
        self.all: list[Waited] = []
        self._since: float | None = None

    @property
    def longest(self) -> Waited | None:
        """The longest wait, None before the first one."""
        return max(self.all, key=lambda wait: wait.lasted_s, default=None)

    def begins(self, at_s: float) -> None:
        """Notes that a try begins at `at_s`."""
        self._since = at_s if self._since is None else self._since

    def failed(self, at_s: float) -> None:
        """Notes that it has failed at `at_s`."""
        if self._since is not None:
            if self.all and self.all[-1].began_s == self._since:
                self.all.pop()
            self.all.append(Waited(self._since, at_s - self._since))

    def succeeded(self, at_s: float) -> None:
        """Notes that it has succeeded at `at_s`."""
        self.failed(at_s)
        self._since = None


class RepeatedWork(ABC):
    """Calls `work` again and again, after a pause of `pause_seconds` each time. Without pauses the test would measure
    an overloaded machine instead of the cluster. `waits`: how long the calls took."""

    def __init__(self, name: str, pause_seconds: float = _PAUSE_SECONDS) -> None:
        self.waits = Waits()
        self._name = name
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> bool:
        """Does the work once, and returns whether it succeeded. An exception ends the thread."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the current call. Raises the error that ended the thread, TimeoutException if the thread does not
        end."""
        self._stopping.set()
        self._thread.join(_END_SECONDS)
        self.check()
        if self._thread.is_alive():
            raise TimeoutException(f"{self._name} has not ended within {_END_SECONDS:.0f} s")

    def check(self) -> None:
        """Raises the error that ended the thread."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._pause_seconds):
                self.waits.begins(time.monotonic())
                (self.waits.succeeded if self.work() else self.waits.failed)(time.monotonic())
        except BaseException as error:
            self._failure = error


class AcknowledgedRecord(NamedTuple):
    """An acknowledged record and its place."""

    partition: int
    offset: int
    number: int


KEYS = 50  # of a partition of a compacted topic


def key_of(number: int, partitions: int) -> bytes:
    """The key of a number in a compacted topic."""
    return str(number // partitions % KEYS).encode()


class NumberSender:
    """Sends each number once with acks=all, and remembers the acknowledged ones. `timeout_ms` is in ms.

    The remainder of a number is its partition. A record without acknowledgement may be in the log or not. `has_keys`:
    whether the records have keys, for a compacted topic.
    """

    def __init__(
        self, cluster_uri: str, topic: str, partitions: int, first: int, timeout_ms: int, config: Config | None = None,
        has_keys: bool = False,
    ) -> None:  # fmt: skip
        self.sent = 0
        self._has_keys = has_keys
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
        if self._has_keys:
            keys = pa.array([key_of(number, self._partitions) for number in numbers], pa.binary())
            records = records.append_column("key", keys)
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
        config: Config | None = None, has_keys: bool = False,
    ) -> None:  # fmt: skip
        NumberSender.__init__(self, cluster_uri, topic, partitions, first, timeout_ms, config, has_keys)
        RepeatedWork.__init__(self, f"producer of {topic} from {first} on")
        self._batch = batch

    def work(self) -> bool:
        """Sends a batch."""
        self._next += self._batch
        return self._send(range(self._next - self._batch, self._next))
