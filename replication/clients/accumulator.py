"""The sends and single records of a producer that wait, and which of them share a commit.

Kafka: `RecordAccumulator`, `ProducerBatch`. [AP-06]
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.delivery_reports import DeliveryReports, Report, SingleRecord, reports_of
from lakelog.replication.clients.one_process import OneProcessFuture
from lakelog.replication.clients.record_set import ArrowRecordSet, RecordSet
from lakelog.replication.clients.records import partitions_of, random_partition, table_of_rows, to_records
from lakelog.replication.errors import TimeoutException
from lakelog.replication.protocol.rounds.pipeline_round import Answers
from lakelog.replication.protocol.rounds.send_round import RecordMetadata

logger = logging.getLogger(__name__)

# Sends share a commit only if their deadlines are at most this many seconds after that of the first one. The commit has
# the first one's deadline, so the others lose the difference.
_SHARED_SECONDS = 1.0

Outcome: TypeAlias = tuple[Answers | None, BaseException | None]


class PendingSend:
    """The records of a send, and the future of its answers.

    `deadline`: on the monotonic clock, in seconds. `may_expire`: whether it fails if it has not begun by then;
    otherwise it is attempted once even later. `shares_with`: sends with equal values may share a commit; None if the
    send has a commit of its own. `nbytes`: the bytes of its records in memory.
    """

    given: RecordSet

    def __init__(self, topic: str, given: RecordSet | None, timeout_ms: int, deadline: float) -> None:
        self.future: Future[dict[int, RecordMetadata]] = OneProcessFuture()
        self.topic, self.timeout_ms, self.deadline = topic, timeout_ms, deadline
        self.may_expire, self.nbytes = False, 0
        self._outcomes: list[Outcome] = []
        self.shares_with: object = topic, timeout_ms
        if given is not None:
            self.given, self.nbytes = given, given.nbytes
            self.shares_with = self.shares_with if isinstance(given, ArrowRecordSet) else None

    @property
    def partition_bytes(self) -> Mapping[int, int]:
        """The bytes of each partition; empty if the send shares no commit."""
        return self.given.partition_bytes if isinstance(self.given, ArrowRecordSet) else {}

    @property
    def record_count(self) -> int:
        """The number of its records."""
        return sum(self.given.counts.values())

    def try_begin(self) -> bool:
        """Begins the send; returns whether to send it. Returns False if the send has ended instead: its future was
        cancelled, `close` has settled it, or it may expire and its deadline has passed."""
        if self.future.done():  # it was cancelled, or `close` has settled it
            self.release()
            return False
        if self.may_expire and time.monotonic() >= self.deadline:
            self.expire()
            return False
        return True

    def expire(self) -> None:
        """Fails a send whose deadline has passed before anything of it was sent."""
        expired = TimeoutException(
            f"{self.topic}: {self.record_count} records waited for earlier sends, and were not sent within "
            f"{self.timeout_ms} ms"
        )
        self.end(None, expired)

    def end(self, answers: Answers | None, error: BaseException | None) -> None:
        """Frees the records, and gives the future the answers or, if these are None, the error. Nothing happens to a
        future that has its outcome or was cancelled."""
        try:
            self.release()
        finally:
            self.settle(answers, error)

    def settle(self, answers: Answers | None, error: BaseException | None) -> None:
        """Settles the future, but keeps the records, which another thread may be sending. The first outcome counts: if
        an interruption ends the first call half way, a later call completes it with that outcome."""
        self._outcomes.append((answers, error))
        answers, error = self._outcomes[0]
        self._report(answers, error)
        with suppress(InvalidStateError):  # it was cancelled, or has its outcome
            if answers is None:
                self.future.set_exception(error)
            else:
                self.future.set_result(dict(sorted(answers.items())))

    def _report(self, answers: Answers | None, error: BaseException | None) -> None:
        """Does nothing: the future has the outcome. `PendingRecords` also reports it."""

    def release(self) -> None:
        """Frees the records. An error is only logged, because it does not change whether the records were sent."""
        given: RecordSet | None = self.__dict__.pop("given", None)  # a caller may keep the future for long
        try:
            if given is not None:
                given.__exit__()
        except Exception as error:
            logger.error("producer: the records of a send to %s were not freed: %s", self.topic, error)


class PendingRecords(PendingSend):
    """A send that collects single records of a topic. When it begins, it makes one table of them.

    `partitions`: the topic's number of partitions. `timeout_ms` counts from the first record. `reports` gets the
    outcome of each record. Kafka: `ProducerBatch`.
    """

    def __init__(
        self, topic: str, partitions: int, segment_bytes: int, timeout_ms: int, reports: DeliveryReports
    ) -> None:  # fmt: skip
        super().__init__(topic, None, timeout_ms, time.monotonic() + timeout_ms / 1000)
        self.partitions = partitions
        self._sticky = random_partition(partitions)
        self._segment_bytes = segment_bytes
        self._reports = reports
        self._records: list[SingleRecord] = []
        self._made: list[deque[Report]] = []
        self._bytes: Counter[int | None] = Counter()  # by partition; None: of records whose keys decide it

    def add(self, record: SingleRecord) -> None:
        """Adds a record behind the others."""
        partition = record.row["partition"]
        if partition is None and record.row["key"] is None:
            partition = self._sticky
        self._bytes[partition] += record.nbytes
        self.nbytes += record.nbytes
        self._records.append(record)

    @property
    def partition_bytes(self) -> Mapping[int, int]:
        """The bytes of each partition. Those of records with a key are shared out evenly: their partitions are not
        computed before the send begins."""
        each = -(-self._bytes[None] // self.partitions)
        return {p: size for p in range(self.partitions) if (size := self._bytes[p] + each)}

    @property
    def record_count(self) -> int:
        """The number of its records."""
        return len(self._records)

    def try_begin(self) -> bool:
        """As in `PendingSend`, and makes the table. If that raises an error, only this send ends, with the error."""
        if not super().try_begin():
            return False
        try:
            self._make_table()
        except Exception as error:
            self.end(None, error)
            return False
        return True

    def _make_table(self) -> None:
        rows = table_of_rows([record.row for record in self._records])
        table = to_records(rows, topic=self.topic)
        numbers = partitions_of(rows, table, self.topic, self.partitions, self._sticky)
        table = table.append_column("partition", numbers)
        self.given = ArrowRecordSet(self.topic, table, self.partitions, self._sticky, self._segment_bytes)
        for record, number in zip(self._records, numbers.to_pylist(), strict=True):
            record.row["partition"] = number

    def _report(self, answers: Answers | None, error: BaseException | None) -> None:
        """Reports the outcome of each record. After an interruption it adds the same deque again: no record is reported
        twice."""
        if not self._made:
            self._made.append(reports_of(self.topic, self._records, answers, error))
        self._reports.add(self._made[0])

    def release(self) -> None:
        """Frees nothing: the records are only in the memory of this process."""


class _Waiting(NamedTuple):
    """A send in the queue. `ready_at`: on the monotonic clock, in seconds. `sizes`: its bytes by partition, which count
    for `batch.size`; empty if they do not count."""

    send: PendingSend
    ready_at: float
    sizes: Mapping[int, int]


class RecordAccumulator:
    """The queue of sends, in their order.

    A send is ready after `linger.ms`, or after half of its time-out if that is earlier. It is ready at once if sends
    that may share its commit have `batch.size` bytes for one partition, if it shares no commit, or if a caller waits
    for it; then all sends before it are ready too.
    Single records of a topic collect in one send of up to `batch.size` bytes, until another send to the topic comes.

    `expires_at`: no send expires before this time, on the monotonic clock, in seconds.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self.expires_at = math.inf
        self._waiting: deque[_Waiting] = deque()
        self._open: dict[str, PendingRecords] = {}  # the last send of a topic, if it takes more records
        self._sizes: Counter[tuple[object, int]] = Counter()  # bytes by `shares_with` and partition: the sum of `sizes`
        self._urgent = 0  # the number of sends at the front that are ready before their `ready_at`

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingSend]:
        return (waiting.send for waiting in self._waiting)

    def add(self, send: PendingSend, is_awaited: bool) -> None:
        """Adds a send behind the others. If the caller waits for it, it and all before it are ready. Earlier sends to
        its topic take no more records."""
        self._open.pop(send.topic, None)
        sizes = {} if isinstance(send, PendingRecords) or send.shares_with is None else send.partition_bytes
        now = time.monotonic()
        linger = min(self._config.linger_ms / 1000, (send.deadline - now) / 2)  # the rest of its time is for its commit
        self._waiting.append(_Waiting(send, now + linger, sizes))
        self._order()
        if isinstance(send, PendingRecords):  # after the queue: an open send outside of it would never be carried out
            self._open[send.topic] = send
        self._count(send, sizes, 1)
        self._note_expiry(send)
        limit = self._config.batch_size
        is_full = send.shares_with is None or any(self._sizes[send.shares_with, p] >= limit for p in sizes)
        if is_awaited or is_full or not limit:
            self.hurry()

    def _order(self) -> None:
        """Lets no send be ready before those that go before it."""
        number, ready_at = len(self) - 2, self._waiting[-1].ready_at
        while number >= 0 and self._waiting[number].ready_at > ready_at:
            self._waiting[number] = self._waiting[number]._replace(ready_at=ready_at)
            number -= 1

    def last_open(self, topic: str, partitions: int, nbytes: int) -> PendingRecords | None:
        """The topic's open send, if it has room for `nbytes` bytes and was made for this number of partitions.
        Otherwise None, and an open send that does not fit becomes ready, with all sends before it."""
        send = self._open.get(topic)
        if send is None or (send.partitions == partitions and send.nbytes + nbytes <= self._config.batch_size):
            return send
        self.hurry(send)
        return None

    def _count(self, send: PendingSend, sizes: Mapping[int, int], sign: int) -> None:
        for partition, size in sizes.items():
            key = send.shares_with, partition
            self._sizes[key] += sign * size
            if not self._sizes[key]:  # a key has the time-out of a send: keys of all time-outs ever used would stay
                del self._sizes[key]

    def _note_expiry(self, send: PendingSend) -> None:
        if send.may_expire:
            self.expires_at = min(self.expires_at, send.deadline)

    def take_expired(self) -> list[PendingSend]:
        """Removes the sends that may expire and whose time is over, and returns them."""
        now = time.monotonic()
        if now < self.expires_at:
            return []
        over = [n for n, send in enumerate(self) if send.may_expire and send.deadline <= now]
        sends = [self._remove(number) for number in reversed(over)]
        self.expires_at = math.inf
        for send in self:
            self._note_expiry(send)
        return sends[::-1]

    def hurry(self, last: PendingSend | None = None) -> None:
        """Makes all sends ready, or those up to `last`."""
        behind = 0 if last is None else next(n for n, each in enumerate(reversed(self._waiting)) if each.send is last)
        self._urgent = max(self._urgent, len(self) - behind)

    def seconds_left(self) -> float | None:
        """The seconds until the first send is ready, 0 if it is; None if none waits."""
        if not self._waiting:
            return None
        return 0.0 if self._urgent else max(0.0, self._waiting[0].ready_at - time.monotonic())

    def take(self) -> list[PendingSend]:
        """Removes the first send and those behind it that share its commit; nothing if the first is not ready."""
        if self.seconds_left() != 0.0:
            return []
        group, sizes = [self._remove(0)], Counter[int]()
        if group[0].shares_with is not None:
            sizes.update(group[0].partition_bytes)
            while self._waiting and self._fits(self._waiting[0].send, group[0], sizes):
                group.append(self._remove(0))
                sizes.update(group[-1].partition_bytes)
        return group

    def _remove(self, number: int) -> PendingSend:
        send, _, sizes = self._waiting[number]
        if self._open.get(send.topic) is send:
            del self._open[send.topic]
        del self._waiting[number]
        self._count(send, sizes, -1)
        self._urgent -= number < self._urgent
        return send

    def _fits(self, send: PendingSend, first: PendingSend, sizes: Mapping[int, int]) -> bool:
        limit = self._config.batch_size
        ends_then_too = send.deadline - first.deadline <= _SHARED_SECONDS
        is_small = all(sizes.get(p, 0) + size <= limit for p, size in send.partition_bytes.items())
        return send.shares_with == first.shares_with and ends_then_too and is_small

    def clear(self) -> list[PendingSend]:
        """Removes all sends, and returns them."""
        sends = [self._remove(0) for _ in range(len(self._waiting))]
        self._sizes.clear()
        return sends


def answers_of(sends: Sequence[PendingSend], answers: Answers) -> list[dict[int, RecordMetadata]]:
    """The answers of each of the sends that shared a commit."""
    if len(sends) == 1:
        return [dict(answers)]
    before: Counter[int] = Counter()
    found = []
    for counts in (send.given.counts for send in sends):
        found.append({p: _part(answers[p], before[p], count) for p, count in counts.items()})
        before.update(counts)
    return found


def _part(answer: RecordMetadata, before: int, records: int) -> RecordMetadata:
    """The part of an answer for `records` records, which follow the first `before` ones. Offsets are unknown (-1) if
    records of other producers may lie between its records."""
    if answer.last_offset - answer.base_offset + 1 != answer.records or answer.base_offset < 0:
        return replace(answer, records=records, base_offset=-1, last_offset=-1)
    base = answer.base_offset + before
    return replace(answer, records=records, base_offset=base, last_offset=base + records - 1)
