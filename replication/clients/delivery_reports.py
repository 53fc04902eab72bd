"""Reports the outcome of each single record to the function that its caller gave."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.rounds.pipeline_round import Answers
from lakelog.replication.protocol.rounds.send_round import RecordMetadata

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CREATE_TIME = 1  # as confluent-kafka numbers it

logger = logging.getLogger(__name__)

Row: TypeAlias = Mapping[str, Any]


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


class SingleRecord(NamedTuple):
    """A record that waits. `row`: its columns; `partition` is None until one is chosen. `nbytes`: its memory."""

    row: dict[str, Any]
    on_delivery: OnDelivery | None
    nbytes: int


class DeliveryReports:
    """The reports whose functions were not called yet, grouped by send. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sends: deque[deque[Report]] = deque()

    def __bool__(self) -> bool:
        with self._lock:
            return self._has_reports()

    def _has_reports(self) -> bool:
        while self._sends and not self._sends[0]:
            self._sends.popleft()
        return bool(self._sends)

    def add(self, reports: deque[Report]) -> None:
        """Adds the reports of a send. `call` removes them from this same deque, so that adding it twice reports
        nothing twice."""
        if reports:
            with self._lock:
                self._sends.append(reports)

    def call(self) -> int:
        """Calls the functions of all reports, and returns the number of calls. If a function raises an error, it raises
        that, and the next call goes on with the others. After an interruption before a function begins, the report is
        still there."""
        called = 0
        while True:
            report: Report | None = None
            try:
                with self._lock:
                    if not self._has_reports():
                        return called
                    report = self._sends[0][0]
                    del self._sends[0][0]
            except BaseException:
                if report is not None:
                    self._sends.appendleft(deque([report]))
                raise
            on_delivery, message = report
            on_delivery(message._error, message)  # not `message.error()`: an interruption there would lose the report
            called += 1

    def call_all(self) -> None:
        """Calls the functions of all reports, and then raises the first error that one of them has raised."""
        errors: list[Exception] = []
        while self:
            try:
                self.call()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def reports_of(
    topic: str, records: Sequence[SingleRecord], answers: Answers | None, error: BaseException | None
) -> deque[Report]:  # fmt: skip
    """The reports of the records of one send. `answers`: those of its partitions; None if all have failed with `error`.
    Errors of records without an `on_delivery` are logged."""
    found: deque[Report] = deque()
    before: Counter[int] = Counter()
    unreported: Counter[str] = Counter()
    for row, on_delivery, _ in records:
        partition = -1 if row["partition"] is None else row["partition"]
        answer = None if answers is None else answers[partition]
        failure = error if answer is None else answer.error
        if on_delivery is not None:
            offset = -1 if answer is None else _offset(answer, before[partition])
            found.append((on_delivery, ProducedMessage(topic, partition, offset, row, failure)))
        elif failure is not None:
            unreported[f"{_name(failure)}: {failure}"] += 1
        before[partition] += 1
    for text, count in unreported.items():
        logger.error("producer: %d records to %s were not delivered: %s", count, topic, text)
    return found


def _name(error: BaseException) -> str:
    return error.name if isinstance(error, LakelogException) else type(error).__name__


def _offset(answer: RecordMetadata, before: int) -> int:
    """The offset of the record behind the first `before` ones; -1 if records of other producers may lie between
    them."""
    is_whole = answer.base_offset >= 0 and answer.last_offset - answer.base_offset + 1 == answer.records
    return answer.base_offset + before if is_whole else -1
