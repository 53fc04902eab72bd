"""Records that are produced one by one. Those of a topic wait for one another, and are sent as one table.

Kafka: `KafkaProducer.send`, `RecordAccumulator`. [AP-06]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.delivery_reports import (
    Answers,
    DeliveryReports,
    OnDelivery,
    Row,
    SingleBatch,
    seconds_left,
)
from lakelog.replication.clients.record_limit import RecordLimit
from lakelog.replication.clients.records import partitions_of, random_partition, single_row, table_of_rows, to_records
from lakelog.replication.errors import (
    IllegalStateException,
    InvalidPartitionsException,
    RetriableException,
    TimeoutException,
)
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS

_AGAIN_SECONDS = 0.05  # between two attempts to hand over records
_BUSY_SECONDS = 0.005  # between two polls whether sends wait
_TOPICS = 10_000  # of which a producer knows the number of partitions
_RECORD_BYTES = 32  # offsets, timestamp and partition of a record in memory


Known = TypeVar("Known")


def remember(known: dict[str, Known], topic: str, value: Known) -> Known:
    """Keeps what is known of the topics that were used last: a producer may see topics come and go for years."""
    known.pop(topic, None)
    known[topic] = value
    if len(known) > _TOPICS:
        del known[next(iter(known))]
    return value


class SendTable(Protocol):
    """Begins to send a table. `deadline`: of the send; `memory_deadline`: of the wait for memory; both in seconds of
    the monotonic clock."""

    def __call__(
        self, topic: str, records: pa.Table, deadline: float, memory_deadline: float | None
    ) -> Future[Answers]: ...  # fmt: skip


class SingleRecords:
    """Keeps records until `linger.ms` is over or there are `batch.size` bytes of a topic, and hands them over.

    Threads may share it. One at a time hands over, so that each partition keeps the order of the calls. A thread of its
    own hands over records that have lingered; it ends when there are none. `partition_count`, `record_limit`: of a
    topic. `is_busy`: whether sends wait for others, so that records may as well wait for more records.
    """

    def __init__(
        self, config: ProducerConfig, partition_count: Callable[[str], int],
        record_limit: Callable[[str], RecordLimit], send: SendTable, is_busy: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._config = config
        self._is_busy = is_busy
        self._partition_count = partition_count
        self._record_limit = record_limit
        self._send = send
        self.reports = DeliveryReports()
        self._turn = threading.RLock()  # of the thread that hands over; it is taken before the other lock
        self._lock = threading.Condition()  # it is notified when no record is left
        self._batches: dict[str, SingleBatch] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # The partitions of each topic and its largest record, and until when that counts.
        self._known: dict[str, tuple[int, RecordLimit, float]] = {}

    def add(
        self, topic: str, value: Any, key: Any, partition: int | None, on_delivery: OnDelivery | None, timestamp: Any,
        headers: Any,
    ) -> None:  # fmt: skip
        """Adds a record. If the topic's records are `batch.size` bytes it first hands them over, and waits for memory.

        Raises InvalidRecordException, InvalidPartitionsException, RecordTooLargeException, IllegalStateException after
        `close`, and, if records before it could not be handed over, TimeoutException and other RetriableExceptions:
        then it is not added.
        """
        row = single_row(topic, value, key, partition, timestamp, headers)
        headers_bytes = sum(len(name.encode()) + len(content or b"") for name, content in row["headers"] or ())
        size = len(row["key"] or b"") + len(row["value"] or b"") + headers_bytes
        self._check(topic, partition, size)
        nbytes = _RECORD_BYTES + size
        while not self._add(topic, row, on_delivery, nbytes):
            self.hand_over([topic], time.monotonic() + self._config.max_block_ms / 1000)

    def _check(self, topic: str, partition: int | None, size: int) -> None:
        count, limit = self._known_of(topic)
        if partition is not None and not 0 <= partition < count:
            raise InvalidPartitionsException(
                f"record for topic {topic}: partition {partition} is out of range, the topic has 0 to {count - 1}"
            )
        limit.check(size, partition)

    def _known_of(self, topic: str) -> tuple[int, RecordLimit]:
        """The topic's number of partitions and its largest record, a second old at most: a poll of the tables costs
        more than a record."""
        known = self._known.get(topic)
        if known is None or time.monotonic() >= known[2]:
            found = self._partition_count(topic), self._record_limit(topic), time.monotonic() + RECENT_SECONDS
            known = remember(self._known, topic, found)
        return known[:2]

    def _add(self, topic: str, row: Row, on_delivery: OnDelivery | None, nbytes: int) -> bool:
        with self._lock:
            if self._is_closed:
                raise IllegalStateException("the producer is closed: it sends nothing any more")
            batch = self._batches.get(topic)
            if batch is not None and batch.nbytes + nbytes > self._config.batch_size:
                return False
            if batch is None:
                now, config = time.monotonic(), self._config
                batch = SingleBatch(topic, now + config.linger_ms / 1000, now + config.delivery_timeout_ms / 1000)
                self._batches[topic] = batch
            batch.add(row, on_delivery, nbytes)
            self._start()
        return True

    def _start(self) -> None:
        """Starts the thread, unless it runs. Without it the records wait for `flush`, or for `batch.size` bytes."""
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._linger, name="lakelog-producer-linger-thread")
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # this process has too many threads
            self._thread = None

    def _linger(self) -> None:
        while due := self._due():
            for topic in due:
                try:
                    self.hand_over([topic])
                except RetriableException:  # it is tried again, until the records' time is over
                    continue

    def _due(self) -> list[str]:
        """Waits for records that have lingered, and returns their topics; none if no record is left."""
        with self._lock:
            while self._batches:
                left = min(batch.ready_at for batch in self._batches.values()) - time.monotonic()
                if left <= 0 and not self._is_busy():
                    return [b.topic for b in self._batches.values() if b.ready_at <= time.monotonic()]
                self._lock.wait(left if left > 0 else _BUSY_SECONDS)
            self._thread = None
            return []

    def hand_over(self, topics: Iterable[str] | None = None, deadline: float | None = None) -> None:
        """Sends the records of these topics, or of all. `deadline`: until then it waits for memory and for other
        threads, in seconds of the monotonic clock.

        Raises TimeoutException and other RetriableExceptions: then the records are kept. Any other error is reported.
        """
        left = seconds_left(deadline)
        if not self._turn.acquire(timeout=-1 if left is None else left):
            raise TimeoutException("records were not sent: another thread waits for memory")
        try:
            for topic in list(self._batches if topics is None else topics):
                self._hand_over(topic, deadline)
        finally:
            self._turn.release()

    def _hand_over(self, topic: str, memory_deadline: float | None) -> None:
        with self._lock:
            batch = self._batches.pop(topic, None)
            if batch is None:
                return
            self.reports.expect(1)
            if not self._batches:
                self._lock.notify_all()
        try:
            future = self._begin(batch, memory_deadline)
        except BaseException as error:
            if isinstance(error, RetriableException) and time.monotonic() < batch.deadline:
                self._put_back(batch)
                raise
            self.reports.settle(batch, None, error)
            if not isinstance(error, Exception):  # the user has interrupted the thread
                raise
        else:
            future.add_done_callback(lambda done: self._settle(batch, done))

    def _begin(self, batch: SingleBatch, memory_deadline: float | None) -> Future[Answers]:
        count = self._partition_count(batch.topic)
        table = table_of_rows(batch.rows)
        records = to_records(table, topic=batch.topic)
        numbers = partitions_of(table, records, batch.topic, count, random_partition(count))
        batch.partitions = numbers.to_pylist()
        return self._send(batch.topic, records.append_column("partition", numbers), batch.deadline, memory_deadline)

    def _put_back(self, batch: SingleBatch) -> None:
        with self._lock:
            later = self._batches.get(batch.topic)
            batch.ready_at = time.monotonic() + _AGAIN_SECONDS
            self._batches[batch.topic] = batch.followed_by(later) if later else batch
            self.reports.expect(-1)
            self._start()  # it may have ended while there was no record

    def _settle(self, batch: SingleBatch, done: Future[Answers]) -> None:
        error = done.exception()
        self.reports.settle(batch, None if error else done.result(), error)

    def drain(self, deadline: float | None) -> None:
        """Hands over all records. Raises TimeoutException if some are left at the deadline."""
        while self._batches:
            try:
                self.hand_over(None, deadline)
            except RetriableException as error:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutException(f"records are not sent in time: {error}") from error
                with self._lock:
                    self._lock.wait(_AGAIN_SECONDS)

    @property
    def has_waiting(self) -> bool:
        """Whether records wait."""
        return bool(self._batches)

    def close(self, deadline: float | None) -> None:
        """Takes no more records, and hands over all that wait, as far as that goes until the deadline."""
        with self._lock:
            self._is_closed = True
        with suppress(TimeoutException):
            while True:
                self.drain(deadline)
                self.hand_over((), deadline)  # waits for the thread that hands over now, and may put records back
                if not self._batches:
                    return

    def end(self, deadline: float | None) -> None:
        """Ends the records that were not handed over with IllegalStateException, and calls the functions of all reports
        that come until the deadline. Then it raises the first error of a function."""
        with self._lock:
            left, self._batches = list(self._batches.values()), {}
            self._lock.notify_all()
        self.reports.expect(len(left))
        for batch in left:
            closed = IllegalStateException("the producer was closed before the record was sent")
            self.reports.settle(batch, None, closed)
        with suppress(TimeoutException):
            self.reports.wait(deadline)
        self.reports.call_all()
