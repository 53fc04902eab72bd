"""The sends of a producer that wait or are in flight, and the thread that carries them out.

Kafka: `RecordAccumulator`, `Sender`. [AP-06]
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Protocol

from lakelog.replication.clients import sender
from lakelog.replication.errors import IllegalStateException, TimeoutException
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.pipeline_round import PipelineRound, Sending, StepOf
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from lakelog.replication.protocol.rounds.send_steps import (
    Pause,
    ReadLeaderLogs,
    ReadLeaderships,
    ReadReplicas,
    ReadTopic,
    SendStep,
)

Answers = dict[int, RecordMetadata]
_READS = ReadTopic, ReadLeaderships, ReadLeaderLogs, ReadReplicas


class WaitingSend(Protocol):
    """A send that has not begun."""

    future: Future[Answers]
    may_expire: bool

    def begin(self) -> Sending | None:
        """Begins it; None if its future was cancelled, or it `may_expire` and its time is over."""

    def fail(self, error: BaseException) -> None:
        """Ends it with an error. Nothing of it was sent."""


class SendsInFlight:
    """Carries out sends in the order in which they are put.

    One thread at a time does it: a caller that waits for its send, if no other thread is at work, or else a thread that
    ends when nothing is left. `on_abort` is called after an interruption, which ends all sends in flight.
    """

    def __init__(self, max_in_flight: int, poll_ms: int, on_abort: Callable[[], None]) -> None:
        self._poll_ms = poll_ms
        self._on_abort = on_abort
        self._lock = threading.RLock()
        self._waiting: deque[WaitingSend] = deque()
        self._futures: set[Future[Answers]] = set()
        self._worker: threading.Thread | None = None
        self._may_begin = threading.Event()
        self._end: BaseException | None = None  # after `close`: the error of sends that come or remain
        self._is_cut_short = False
        self._max_in_flight = max_in_flight
        self._seen: dict[SendStep, Any] = {}
        self._pipeline = PipelineRound(self._next, max_in_flight, time.monotonic, poll_ms / 1000)

    def put(self, send: WaitingSend, is_awaited: bool) -> None:
        """Adds a send behind the others. Raises IllegalStateException after `close`. A send that the caller waits for,
        and that no other comes before, is attempted once whatever its time-out."""
        with self._lock:
            if self._end is not None:
                raise IllegalStateException("the producer is closed: it sends nothing any more")
            send.may_expire = not is_awaited or self._has_work()
            self._futures.add(send.future)
            self._waiting.append(send)
        send.future.add_done_callback(self._forget)
        if self._pipeline.in_flight < self._max_in_flight:
            self._may_begin.set()

    def _forget(self, future: Future[Answers]) -> None:
        with self._lock:
            self._futures.discard(future)

    def start(self) -> None:
        """Lets a thread carry out what is left, unless one does."""
        thread = threading.Thread(target=self.work, name="lakelog-producer-network-thread")
        with self._lock:
            if self._worker is None and self._has_work():
                self._worker = thread
                thread.start()

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
        self.start()

    def _carry_out(self, until: Callable[[], bool]) -> None:
        self._seen.clear()
        work = self._pipeline.run(lambda: self._is_cut_short or until())
        try:
            carry_out(work, {StepOf: self._step, Pause: self._pause})
        except BaseException as error:
            self._on_abort()
            self._pipeline.abort(error)
            raise
        if self._is_cut_short and self._end is not None:
            self._pipeline.abort(self._end)

    def check_may_wait(self) -> None:
        """Raises IllegalStateException in a callback of a future: its thread carries out what it would wait for."""
        if self._worker is threading.current_thread():
            raise IllegalStateException("a callback must not wait for its producer: use send_async, without flush")

    def flush(self, timeout: float | None) -> None:
        """Waits until all sends that were put before are settled. Raises TimeoutException after `timeout` seconds."""
        self.check_may_wait()
        with self._lock:
            futures = set(self._futures)
        deadline = None if timeout is None else time.monotonic() + timeout
        self.work(lambda: all(future.done() for future in futures) or _is_over(deadline))
        left = wait(futures, None if deadline is None else max(0.0, deadline - time.monotonic())).not_done
        if left:
            raise TimeoutException(f"{len(left)} sends are not settled after {timeout} s")

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
                unsent = list(self._waiting)
                self._waiting.clear()
            for send in unsent:
                send.fail(self._end)
            self._may_begin.set()

    def _next(self) -> Sending | None:
        while True:
            with self._lock:
                send = self._waiting.popleft() if self._waiting else None
            if send is None:
                return None
            begun = send.begin()
            if begun is not None:
                return begun

    def _step(self, step: StepOf) -> Any:
        """Carries out a step of a send. Sends that look at the same time share what they read, until one writes."""
        if not isinstance(step.step, _READS):
            self._seen.clear()
            return step.owner.carry_out(step.step)
        if step.step not in self._seen:
            self._seen[step.step] = step.owner.carry_out(step.step)
        return self._seen[step.step]

    def _pause(self, step: Pause) -> bool:
        """Waits for the next look. Returns whether a send may begin, and the look must wait."""
        self._seen.clear()
        self._may_begin.clear()
        if self._waiting and self._pipeline.in_flight < self._max_in_flight:
            return True
        return bool(sender.pause(self._poll_ms, step.deadline, self._may_begin)) and bool(self._waiting)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
