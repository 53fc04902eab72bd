"""Reports what has become of single records, each to the function that its caller gave."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lakelog.replication.errors import LakelogException, TimeoutException
from lakelog.replication.protocol.rounds.send_round import RecordMetadata

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CREATE_TIME = 1  # as confluent-kafka numbers it

logger = logging.getLogger(__name__)

Row: TypeAlias = Mapping[str, Any]
Answers: TypeAlias = dict[int, RecordMetadata]


@dataclass(frozen=True, slots=True)
class ProducedMessage:
    """A record after its delivery, or after its failure. The methods are those of confluent-kafka's `Message`."""

    _topic: str
    _partition: int
    _offset: int
    _row: Row
    _error: BaseException | None

    def topic(self) -> str:
        """The topic."""
        return self._topic

    def partition(self) -> int:
        """The partition; -1 if none was chosen before the record failed."""
        return self._partition

    def offset(self) -> int:
        """The offset; -1 if it is unknown: after an error, with acks=0, or if a new leader has appended the record."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """1 (CreateTime), and the time in milliseconds since 1970."""
        time = self._row["timestamp"]
        time = time if time.tzinfo else time.replace(tzinfo=dt.UTC)
        return _CREATE_TIME, (time - _EPOCH) // dt.timedelta(milliseconds=1)

    def key(self) -> bytes | None:
        """The key."""
        return self._row.get("key")

    def value(self) -> bytes | None:
        """The value."""
        return self._row["value"]  # type: ignore[no-any-return]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers: names and values."""
        return self._row.get("headers")

    def error(self) -> BaseException | None:
        """The error; None if the record was delivered."""
        return self._error


OnDelivery: TypeAlias = Callable[[BaseException | None, ProducedMessage], object]
Report: TypeAlias = tuple[OnDelivery, ProducedMessage]


@dataclass
class SingleBatch:
    """Single records of a topic that are sent together. `ready_at`, `deadline`: in seconds of the monotonic clock.
    `partitions`: that of each record, once they are chosen."""

    topic: str
    ready_at: float
    deadline: float
    rows: list[Row] = field(default_factory=list)
    on_delivery: list[OnDelivery | None] = field(default_factory=list)
    nbytes: int = 0
    partitions: Sequence[int] = ()

    def add(self, row: Row, on_delivery: OnDelivery | None, nbytes: int) -> None:
        """Adds a record of so many bytes."""
        self.rows.append(row)
        self.on_delivery.append(on_delivery)
        self.nbytes += nbytes

    def followed_by(self, later: SingleBatch) -> SingleBatch:
        """These records and later ones."""
        return SingleBatch(
            self.topic, self.ready_at, self.deadline, self.rows + later.rows, self.on_delivery + later.on_delivery,
            self.nbytes + later.nbytes,
        )  # fmt: skip


class DeliveryReports:
    """The reports that were not called yet, and the number of batches that have been handed over and not reported.
    Threads may share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._unreported = 0
        self._reports: deque[Report] = deque()

    def expect(self, batches: int) -> None:
        """So many more batches are handed over; fewer if it is negative."""
        with self._changed:
            self._unreported += batches

    def settle(self, batch: SingleBatch, answers: Answers | None, error: BaseException | None) -> None:
        """A batch that was handed over has its answers, or an error."""
        found = _reports(batch, answers, error)
        with self._changed:
            self._reports.extend(found)
            self._unreported -= 1
            self._changed.notify_all()

    def wait(self, deadline: float | None) -> None:
        """Waits for the reports of all that was handed over. Raises TimeoutException if they do not come in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._unreported, seconds_left(deadline)):
                raise TimeoutException(f"the records of {self._unreported} sends are not settled in time")

    def call(self, timeout: float | None, may_come: Callable[[], bool]) -> int:
        """Waits up to `timeout` seconds for a report; with None while one `may_come`. Calls the functions of all
        reports that there are, and returns their number. It raises the error of a function, and calls the others next
        time."""
        if timeout != 0:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._reports or (timeout is None and not (self._unreported or may_come())), timeout
                )
        called = 0
        while True:
            try:
                on_delivery, message = self._reports.popleft()
            except IndexError:  # also if another thread has taken the last one
                return called
            on_delivery(message.error(), message)
            called += 1

    def call_all(self) -> None:
        """Calls the functions of all reports that there are, and then raises the first error of a function."""
        errors: list[Exception] = []
        while self._reports:
            try:
                self.call(0, lambda: False)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def deadline_in(seconds: float | None) -> float | None:
    """The time in so many seconds, by the monotonic clock; None is never."""
    return None if seconds is None else time.monotonic() + seconds


def seconds_left(deadline: float | None) -> float | None:
    """The seconds until a deadline, 0 after it; None if there is none."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _reports(batch: SingleBatch, answers: Answers | None, error: BaseException | None) -> list[Report]:
    """The reports of a batch: the answers of its partitions, or the error of all. An error of records that nobody wants
    a report of is logged."""
    found: list[Report] = []
    before: Counter[int] = Counter()
    unreported: Counter[str] = Counter()
    chosen = batch.partitions or [-1] * len(batch.rows)
    for row, on_delivery, partition in zip(batch.rows, batch.on_delivery, chosen, strict=True):
        answer = None if answers is None else answers[partition]
        failure = error if answer is None else answer.error
        if on_delivery is not None:
            offset = -1 if answer is None else _offset(answer, before[partition])
            found.append((on_delivery, ProducedMessage(batch.topic, partition, offset, row, failure)))
        elif failure is not None:
            unreported[f"{_name(failure)}: {failure}"] += 1
        before[partition] += 1
    for words, count in unreported.items():
        logger.error("producer: %d records to %s were not delivered: %s", count, batch.topic, words)
    return found


def _name(error: BaseException) -> str:
    return error.name if isinstance(error, LakelogException) else type(error).__name__


def _offset(answer: RecordMetadata, before: int) -> int:
    """The offset of a record. If records of other producers may lie between those of the answer, it is unknown."""
    is_whole = answer.base_offset >= 0 and answer.last_offset - answer.base_offset + 1 == answer.records
    return answer.base_offset + before if is_whole else -1
