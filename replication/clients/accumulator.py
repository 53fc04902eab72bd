"""The sends of a producer that wait or are in flight, and the thread that carries them out.

Kafka: `RecordAccumulator`, `Sender`. [AP-06]
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

from lakelog.replication.clients import send_executor
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.one_process import OneProcessFuture
from lakelog.replication.clients.record_set import ArrowRecordSet, RecordSet
from lakelog.replication.errors import IllegalStateException, TimeoutException
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.pipeline_round import Answers, InFlightSends, PipelineRound, StepOf
from lakelog.replication.protocol.rounds.send_round import (
    Pause,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    ReadTopic,
    RecordMetadata,
    SendStep,
)

logger = logging.getLogger(__name__)

# A commit has the deadline of its first send. The others may have this number of seconds more, which they lose.
_SHARED_SECONDS = 1.0

_READS = ReadTopic, ReadLeaderships, ReadLeaderLogs, ReadReplicas  # the steps whose answers sends share


class PendingSend:
    """The records of a send, and the future of its answers.

    `begin`: begins sends that share a commit. `deadline`: on the monotonic clock, in seconds. `may_expire`: whether it
    is not sent once its time is over. `shares_with`: sends of equal values may share a commit; None if it shares with
    none. `nbytes`: its bytes in memory.
    """

    def __init__(
        self, begin: Callable[[Sequence[PendingSend]], InFlightSends], topic: str, given: RecordSet, timeout_ms: int,
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

    def begin_with(self, others: Sequence[PendingSend]) -> InFlightSends | None:
        """Begins it together with others; None if all futures were cancelled, or their time is over."""
        sends = [send for send in (self, *others) if send._goes()]
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


class SendsInFlight:
    """Carries out sends in the order in which they are put.

    One thread at a time does it: a caller that waits for its send, if no other thread is at work, or else a thread that
    ends when nothing is left. `on_abort` is called after an interruption, which ends all sends in flight.
    """

    def __init__(self, config: ProducerConfig, poll_ms: int, on_abort: Callable[[], None]) -> None:
        self._config = config
        self._poll_ms = poll_ms
        self._on_abort = on_abort
        self._lock = threading.Condition()  # it is notified when memory becomes free
        self._waiting = RecordAccumulator(config)
        # Of the sends that are not settled, with their bytes.
        self._futures: dict[Future[dict[int, RecordMetadata]], int] = {}
        self._used_bytes = 0
        self._worker: threading.Thread | None = None
        self._woken, self._is_woken_for_poll = threading.Event(), False
        self._end: BaseException | None = None  # after `close`: the error of sends that come or remain
        self._is_cut_short = False
        self._max_in_flight = config.max_in_flight_requests_per_connection
        self._reads = StepSharing()
        self._pipeline = PipelineRound(self._next, self._max_in_flight, time.monotonic, poll_ms / 1000)

    def wake(self) -> None:
        """Looks at once, or once more, for what the sends in flight wait for, unless one waits to try again."""
        self._is_woken_for_poll = True
        self._woken.set()

    def put(self, send: PendingSend, is_awaited: bool, memory_deadline: float | None = None) -> None:
        """Adds a send behind the others. A send that the caller waits for, and that no other comes before, is attempted
        once whatever its time-out. Raises IllegalStateException after `close`, and TimeoutException if earlier sends
        leave no memory for it in `max_block_ms`, or until `memory_deadline`."""
        with self._lock:
            self._wait_for_memory(send.nbytes, memory_deadline)
            send.may_expire = not is_awaited or self._has_work()
            self._futures[send.future] = send.nbytes
            self._used_bytes += send.nbytes
            self._waiting.add(send, is_awaited)
            expires_first = send.deadline == self._waiting.expires_at
        send.future.add_done_callback(self._forget)
        if expires_first or self._pipeline.in_flight < self._max_in_flight:
            self._woken.set()

    def _wait_for_memory(self, nbytes: int, until: float | None) -> None:
        """A callback does not wait: its thread frees the memory."""
        deadline = min(time.monotonic() + self._config.max_block_ms / 1000, math.inf if until is None else until)
        while True:
            if self._end is not None:
                raise IllegalStateException("the producer is closed: it sends nothing any more")
            used = self._used_bytes
            is_free = not used or used + nbytes <= self._config.buffer_memory
            if is_free or self.works_here:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutException(
                    f"{nbytes} bytes of records found no memory within max_block_ms ({self._config.max_block_ms}): "
                    f"earlier sends have {used} of {self._config.buffer_memory} bytes (buffer_memory)"
                )
            self._waiting.hurry()
            self._woken.set()
            self._lock.wait(left)

    def _forget(self, future: Future[dict[int, RecordMetadata]]) -> None:
        with self._lock:
            self._used_bytes -= self._futures.pop(future, 0)
            self._lock.notify_all()

    def start(self) -> None:
        """Lets a thread carry out what is left, unless one does. Raises RuntimeError if no thread can be started."""
        thread = threading.Thread(target=self.work, name="lakelog-producer-network-thread")
        with self._lock:
            if self._worker is None and self._has_work():
                self._worker = thread
                try:
                    thread.start()
                except BaseException:
                    self._worker = None
                    raise

    def _has_work(self) -> bool:
        return bool(self._waiting or self._pipeline.in_flight)

    def work(self, until: Callable[[], bool] = lambda: False) -> None:
        """Carries out sends in this thread until `until`, or until nothing is left, unless another thread does."""
        try:
            if self._takes_over():
                self._carry_out(until)
        finally:
            self._leave()

    def _takes_over(self) -> bool:
        with self._lock:
            if self._worker is None:
                self._worker = threading.current_thread()
            return self._worker is threading.current_thread()

    def _leave(self) -> None:
        with self._lock:
            if self._worker is not threading.current_thread():
                return
            self._worker = None
        try:
            self.start()
        except RuntimeError as error:
            logger.error("producer: this thread goes on with the sends that are left: %s", error)
            self.work()

    def _carry_out(self, until: Callable[[], bool]) -> None:
        self._reads.clear()
        try:
            while True:
                work = self._pipeline.run(lambda: self._is_cut_short or until())
                carry_out(work, {StepOf: self._reads.step, Pause: self._pause})
                if self._is_cut_short or until() or not self._lingers():
                    break
        except BaseException as error:
            self._on_abort()
            self._pipeline.abort(error)
            raise
        if self._is_cut_short and self._end is not None:
            self._pipeline.abort(self._end)

    @property
    def is_busy(self) -> bool:
        """Whether sends have not begun."""
        return bool(self._waiting)

    @property
    def works_here(self) -> bool:
        """Whether this thread carries out the sends, so that it calls the callbacks of futures."""
        return self._worker is threading.current_thread()

    def check_may_wait(self) -> None:
        """Raises IllegalStateException in a callback of a future: its thread carries out what it would wait for."""
        if self.works_here:
            raise IllegalStateException("a callback must not wait for its producer: use send_async, without flush")

    def flush(self, timeout: float | None) -> None:
        """Waits until all sends that were put before are settled. Raises TimeoutException after `timeout` seconds."""
        self.check_may_wait()
        with self._lock:
            futures = set(self._futures)
            self._waiting.hurry()
        self._woken.set()
        deadline = None if timeout is None else time.monotonic() + timeout
        self.work(lambda: all(future.done() for future in futures) or _is_over(deadline))
        left = wait(futures, None if deadline is None else max(0.0, deadline - time.monotonic())).not_done
        if left:
            raise TimeoutException(f"{len(left)} sends are not settled in time")

    def close(self, timeout: float | None) -> None:
        """Takes no more sends, and waits until all others are settled. Those that are not after `timeout` seconds fail
        with IllegalStateException; nobody knows whether their records are in a log."""
        self.check_may_wait()
        with self._lock:
            self._end = self._end or IllegalStateException("the producer was closed before the send was settled")
        try:
            self.flush(timeout)
        except TimeoutException:
            with self._lock:
                self._is_cut_short = True
                unsent = self._waiting.clear()
            self._woken.set()
            settle_each(partial(send.fail, self._end) for send in unsent)

    def _next(self) -> InFlightSends | None:
        while True:
            with self._lock:
                sends = self._waiting.take()
            if not sends:
                return None
            begun = sends[0].begin_with(sends[1:])
            if begun is not None:
                return begun

    def _lingers(self) -> bool:
        """While nothing is in flight: waits until the first send is ready; False if none waits."""
        self._woken.clear()
        self._expire()
        left = self._ready_in()
        if left:
            self._woken.wait(min(left, max(0.0, self._waiting.expires_at - time.monotonic())))
        return left is not None

    def _ready_in(self) -> float | None:
        with self._lock:
            return self._waiting.seconds_left()

    def _expire(self) -> None:
        with self._lock:
            expired = self._waiting.take_expired()
        settle_each(send.expire for send in expired)

    def _pause(self, step: Pause) -> bool:
        """Waits for the next poll, or until a send may begin. Returns whether one may; then the poll must wait. Sends
        whose time is over meanwhile expire."""
        self._reads.clear()
        poll_at = min(time.monotonic() + self._poll_ms / 1000, step.deadline)
        while True:
            self._woken.clear()
            self._expire()
            left = self._ready_in() if self._pipeline.in_flight < self._max_in_flight else None
            if left == 0.0:
                return True
            if self._is_woken_for_poll and not step.is_backoff:
                break
            now = time.monotonic()
            until = min(poll_at, self._waiting.expires_at, math.inf if left is None else now + left)
            wait_ms = max(0, math.ceil((until - now) * 1000))
            if not send_executor.pause(wait_ms, step.deadline, self._woken) and until == poll_at:
                break
        self._is_woken_for_poll = False
        return False


class RecordAccumulator:
    """Keeps sends in their order. The first one is ready after `linger.ms`, or once a partition has `batch.size` bytes,
    or when somebody waits for it.

    `expires_at`: before this time of the monotonic clock, in seconds, no send expires.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self.expires_at = math.inf
        self._waiting: deque[tuple[PendingSend, float]] = deque()
        self._sizes: Counter[tuple[object, int]] = Counter()
        self._urgent = 0  # so many from the front are ready

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, send: PendingSend, is_awaited: bool) -> None:
        """Adds a send behind the others. If the caller waits for it, it is ready, and all before it."""
        self._waiting.append((send, time.monotonic() + self._config.linger_ms / 1000))
        self._count(send, 1)
        self._note_expiry(send)
        limit = self._config.batch_size
        shares = send.shares_with is not None and limit > 0
        is_full = any(self._sizes[send.shares_with, p] >= limit for p in send.partition_bytes) if shares else True
        if is_awaited or is_full:
            self.hurry()

    def _count(self, send: PendingSend, sign: int) -> None:
        if send.shares_with is not None:
            for partition, size in send.partition_bytes.items():
                key = send.shares_with, partition
                self._sizes[key] += sign * size
                if not self._sizes[key]:  # time-outs differ, and each would stay for ever
                    del self._sizes[key]

    def _note_expiry(self, send: PendingSend) -> None:
        if send.may_expire:
            self.expires_at = min(self.expires_at, send.deadline)

    def take_expired(self) -> list[PendingSend]:
        """Removes the sends that may expire and whose time is over, and returns them."""
        now = time.monotonic()
        if now < self.expires_at:
            return []
        over = [n for n, (send, _) in enumerate(self._waiting) if send.may_expire and send.deadline <= now]
        sends = [self._remove(number) for number in reversed(over)]
        self.expires_at = math.inf
        for send, _ in self._waiting:
            self._note_expiry(send)
        return sends[::-1]

    def hurry(self) -> None:
        """All that wait are ready."""
        self._urgent = len(self._waiting)

    def seconds_left(self) -> float | None:
        """The seconds until the first send is ready, 0 if it is; None if none waits."""
        if not self._waiting:
            return None
        return 0.0 if self._urgent else max(0.0, self._waiting[0][1] - time.monotonic())

    def take(self) -> list[PendingSend]:
        """Removes the first send and those behind it that share its commit; nothing if the first is not ready."""
        if self.seconds_left() != 0.0:
            return []
        group, sizes = [self._remove(0)], Counter[int]()
        if group[0].shares_with is not None:
            sizes.update(group[0].partition_bytes)
            while self._waiting and self._fits(self._waiting[0][0], group[0], sizes):
                group.append(self._remove(0))
                sizes.update(group[-1].partition_bytes)
        return group

    def _remove(self, number: int) -> PendingSend:
        send, _ = self._waiting[number]
        del self._waiting[number]
        self._count(send, -1)
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


class StepSharing:
    """Carries out the steps of sends. Sends that look at the same time share what they read, until one writes."""

    def __init__(self) -> None:
        self._seen: dict[SendStep, Any] = {}

    def clear(self) -> None:
        """Forgets what was read."""
        self._seen.clear()

    def step(self, step: StepOf) -> Any:
        """Carries out a step, or returns what it has read for another send. Sends share no log that is older than the
        rows: it may lack what a row names."""
        if not isinstance(step.step, _READS):
            self._seen.clear()
            return step.owner.carry_out(step.step)
        if step.step not in self._seen:
            if isinstance(step.step, ReadLeaderships):
                self._seen = {seen: found for seen, found in self._seen.items() if not isinstance(seen, ReadLeaderLogs)}
            self._seen[step.step] = step.owner.carry_out(step.step)
        return self._seen[step.step]


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
    """The answer for `records` of the records, after the first `before`. If records of other producers may lie between
    them, their offsets are unknown: -1."""
    if answer.last_offset - answer.base_offset + 1 != answer.records or answer.base_offset < 0:
        return replace(answer, records=records, base_offset=-1, last_offset=-1)
    base = answer.base_offset + before
    return replace(answer, records=records, base_offset=base, last_offset=base + records - 1)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
