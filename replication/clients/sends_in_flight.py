"""The sends of a producer that wait or are in flight, and the thread that carries them out.

Kafka: `RecordAccumulator`, `Sender`. [AP-06]
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from lakelog.replication.clients import sender
from lakelog.replication.clients.producer_config import ProducerConfig
from lakelog.replication.clients.record_accumulator import RecordAccumulator, WaitingSend
from lakelog.replication.clients.shared_reads import SharedReads
from lakelog.replication.clients.waiting_send import settle_each
from lakelog.replication.errors import IllegalStateException, TimeoutException
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.pipeline_round import PipelineRound, Sending, StepOf
from lakelog.replication.protocol.rounds.send_round import Pause, RecordMetadata

Answers = dict[int, RecordMetadata]

logger = logging.getLogger(__name__)


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
        self._futures: dict[Future[Answers], int] = {}  # of the sends that are not settled, with their bytes
        self._used_bytes = 0
        self._worker: threading.Thread | None = None
        self._woken, self._looks_now = threading.Event(), False
        self._end: BaseException | None = None  # after `close`: the error of sends that come or remain
        self._is_cut_short = False
        self._max_in_flight = config.max_in_flight_requests_per_connection
        self._reads = SharedReads()
        self._pipeline = PipelineRound(self._next, self._max_in_flight, time.monotonic, poll_ms / 1000)

    def look(self) -> None:
        """Looks at once, or once more, for what the sends in flight wait for, unless one waits to try again."""
        self._looks_now = True
        self._woken.set()

    def put(self, send: WaitingSend, is_awaited: bool, memory_deadline: float | None = None) -> None:
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

    def _forget(self, future: Future[Answers]) -> None:
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

    def _next(self) -> Sending | None:
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
        """Waits for the next look, or until a send may begin. Returns whether one may; then the look must wait. Sends
        whose time is over meanwhile expire."""
        self._reads.clear()
        look_at = min(time.monotonic() + self._poll_ms / 1000, step.deadline)
        while True:
            self._woken.clear()
            self._expire()
            left = self._ready_in() if self._pipeline.in_flight < self._max_in_flight else None
            if left == 0.0:
                return True
            if self._looks_now and not step.is_backoff:
                break
            now = time.monotonic()
            until = min(look_at, self._waiting.expires_at, math.inf if left is None else now + left)
            wait_ms = max(0, math.ceil((until - now) * 1000))
            if not sender.pause(wait_ms, step.deadline, self._woken) and until == look_at:
                break
        self._looks_now = False
        return False


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
