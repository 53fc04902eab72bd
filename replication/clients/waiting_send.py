"""A send of a producer from its call to its answers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import cast

from lakelog.replication.clients.one_process import OneProcessFuture
from lakelog.replication.clients.record_accumulator import WaitingSend
from lakelog.replication.clients.record_set import ArrowRecordSet, RecordSet
from lakelog.replication.errors import TimeoutException
from lakelog.replication.protocol.rounds.pipeline_round import Answers, Sending
from lakelog.replication.protocol.rounds.send_round import RecordMetadata

logger = logging.getLogger(__name__)


class Send:
    """The records of a send, and the future of its answers. `begin`: begins sends that share a commit."""

    def __init__(
        self, begin: Callable[[Sequence[Send]], Sending], topic: str, given: RecordSet, timeout_ms: int,
        deadline: float,
    ) -> None:  # fmt: skip
        self.future: Future[dict[int, RecordMetadata]] = OneProcessFuture()
        self.topic, self.given, self.timeout_ms, self.deadline = topic, given, timeout_ms, deadline
        self.may_expire = False
        self.shares_with: object = (topic, timeout_ms) if isinstance(given, ArrowRecordSet) else None
        self.nbytes = given.nbytes
        self._begin = begin

    @property
    def partition_bytes(self) -> Mapping[int, int]:
        """The bytes of each partition, if it shares with others."""
        return self.given.partition_bytes if isinstance(self.given, ArrowRecordSet) else {}

    def begin_with(self, others: Sequence[WaitingSend]) -> Sending | None:
        """Begins it together with others; None if all futures were cancelled, or their time is over."""
        sends = [send for send in (self, *cast(Sequence[Send], others)) if send._goes()]
        try:
            return self._begin(sends) if sends else None
        except BaseException as error:
            settle_each(partial(send.end, None, error) for send in sends)
            if not isinstance(error, Exception):  # the user has interrupted the thread
                raise
            return None  # it concerns no other send

    def _goes(self) -> bool:
        if not self.future.set_running_or_notify_cancel():
            self.release()
            return False
        if self.may_expire and time.monotonic() >= self.deadline:
            self.end(None, self._expired())
            return False
        return True

    def _expired(self) -> TimeoutException:
        records = sum(self.given.counts.values())
        return TimeoutException(
            f"{self.topic}: {records} records waited for earlier sends, and were not sent within {self.timeout_ms} ms"
        )

    def expire(self) -> None:
        """Ends it because its time is over. Nothing of it was sent."""
        self.fail(self._expired())

    def fail(self, error: BaseException) -> None:
        """Ends it with an error, unless its future was cancelled. Nothing of it was sent."""
        if self.future.set_running_or_notify_cancel():
            self.end(None, error)

    def end(self, answers: Answers | None, error: BaseException | None) -> None:
        """Ends it: its future gets the answers, or the error that its round has raised."""
        try:
            self.release()
        finally:
            if answers is None:
                self.future.set_exception(error)
            else:
                self.future.set_result(dict(sorted(answers.items())))

    def release(self) -> None:
        """Frees the records. An error of that is only logged: the records are sent, or are not, all the same."""
        try:
            self.given.__exit__()
        except Exception as error:
            logger.error("producer: the records of a send to %s were not freed: %s", self.topic, error)


def settle_each(ends: Iterable[Callable[[], object]]) -> None:
    """Ends sends, all of them. The callbacks of their futures are a user's code: one that ends its thread, by
    `sys.exit()` or Ctrl-C, would leave the others unsettled for ever. The first such error is raised in the end."""
    first: BaseException | None = None
    for end in ends:
        try:
            end()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


def answers_of(sends: Sequence[Send], answers: Answers) -> list[dict[int, RecordMetadata]]:
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
    """The answer for `records` of the records, after the first `before`. If records of other producers may lie between
    them, their offsets are unknown: -1."""
    if answer.last_offset - answer.base_offset + 1 != answer.records or answer.base_offset < 0:
        return replace(answer, records=records, base_offset=-1, last_offset=-1)
    base = answer.base_offset + before
    return replace(answer, records=records, base_offset=base, last_offset=base + records - 1)
