"""Carries out the sends of a producer, in a thread of its own or in that of a caller who waits.

Kafka: `Sender`. [AP-06]
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial

from lakelog.replication.clients.accumulator import PendingRecords, PendingSend, RecordAccumulator
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.delivery_reports import SingleRecord
from lakelog.replication.clients.topic_view import pause
from lakelog.replication.errors import IllegalStateException, TimeoutException
from lakelog.replication.protocol.rounds.carry_out import carry_out
from lakelog.replication.protocol.rounds.pipeline_round import PipelineRound, SendInFlight, StepOf
from lakelog.replication.protocol.rounds.send_round import Pause

logger = logging.getLogger(__name__)


class Sender:
    """Carries out sends in the order in which they are put.

    One thread at a time, the *worker*, carries them out. A caller that waits for its send becomes the worker if there
    is none. Otherwise the sender starts a thread, which ends when nothing is left.

    `begin` puts sends that share a commit in flight. The worker calls `on_abort` if it is interrupted, for example by
    Ctrl-C; then all sends in flight fail.
    """

    def __init__(
        self, config: ProducerConfig, poll_ms: int, begin: Callable[[Sequence[PendingSend]], SendInFlight],
        on_abort: Callable[[], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._poll_ms = poll_ms
        self._begin = begin
        self._on_abort = on_abort
        # Taken directly, never through `_settled`: Ctrl-C in the Python code of a Condition may leave the lock taken.
        self._lock = threading.RLock()
        self._settled = threading.Condition(self._lock)  # notified when a send is settled, which frees memory
        self._accumulator = RecordAccumulator(config)
        self._unsettled: dict[PendingSend, None] = {}
        self._used_bytes = 0
        self._worker: threading.Thread | None = None
        self._closers: set[threading.Thread] = set()
        self._woken, self._is_woken_for_poll = threading.Event(), False
        self._closed: BaseException | None = None  # after `close`: the error of the sends that are left at its time-out
        self._is_cut_short = False  # `close` has reached its time-out
        self._max_in_flight = config.max_in_flight_requests_per_connection
        self._pipeline = PipelineRound(self._next, self._max_in_flight, time.monotonic, poll_ms / 1000)

    def wake(self) -> None:
        """Makes the worker poll for the sends in flight at once, or after the present poll if one is under way. While
        one of them waits for its next attempt, the poll comes at its usual time."""
        self._is_woken_for_poll = True
        self._woken.set()

    def put(self, send: PendingSend, is_awaited: bool) -> None:
        """Adds a send behind the others. `is_awaited`: the caller waits for it. Without other sends an awaited one is
        attempted once, however short its time-out is. Raises IllegalStateException after `close`, and TimeoutException
        if earlier sends leave no memory for it within `max_block_ms`."""
        with self._lock:
            try:
                self._wait_for_memory(send.nbytes)
            except BaseException:
                send.release()
                raise
            self._add(send, is_awaited)
            expires_first = send.deadline == self._accumulator.expires_at
        if expires_first or self._pipeline.in_flight < self._max_in_flight:
            self._woken.set()

    def put_record(
        self, topic: str, partitions: int, record: SingleRecord, new_send: Callable[[], PendingRecords]
    ) -> None:  # fmt: skip
        """Adds a record to the last send of its topic, or if that is full, to a new one behind the others. Raises as
        `put` does. If no thread can be started now, a later call starts one, or becomes the worker."""
        with self._lock:
            self._wait_for_memory(record.nbytes)
            send = self._accumulator.last_open(topic, partitions, record.nbytes)
            is_due = send is None
            if send is None:
                send = new_send()
                self._add(send, False)
            self._unsettled[send] = None  # again: an earlier call may have been interrupted before this line
            send.add(record)
            self._used_bytes += record.nbytes
            if send.nbytes >= self._config.batch_size:
                is_due = True
                self._accumulator.hurry(send)
        if is_due:
            self._woken.set()
        self._start_if_possible()

    def _add(self, send: PendingSend, is_awaited: bool) -> None:
        send.future.add_done_callback(partial(self._forget, send))
        send.may_expire = not is_awaited or self._has_work()
        self._accumulator.add(send, is_awaited)
        self._unsettled[send] = None  # after the queue: `flush` must not wait for a send that nobody will carry out
        self._used_bytes += send.nbytes

    def _wait_for_memory(self, nbytes: int) -> None:
        """Waits until `nbytes` bytes are free. A callback of a future does not wait, because it runs in the worker,
        which has to free the memory."""
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        while True:
            if self._closed is not None:
                raise IllegalStateException("the producer is closed: it sends nothing any more")
            used = self._used_bytes
            is_free = not used or used + nbytes <= self._config.buffer_memory
            if is_free or self.works_here:
                return
            left = deadline - time.monotonic()
            self._accumulator.hurry()
            self._woken.set()
            self._start_if_possible()
            if left <= 0:
                raise TimeoutException(
                    f"{nbytes} bytes of records found no memory within max_block_ms ({self._config.max_block_ms}): "
                    f"earlier sends have {used} of {self._config.buffer_memory} bytes (buffer_memory)"
                )
            self._settled.wait(min(left, threading.TIMEOUT_MAX))

    def _forget(self, send: PendingSend, _: object) -> None:
        with self._lock:
            if send in self._unsettled:
                del self._unsettled[send]
                self._used_bytes -= send.nbytes
            if not self._unsettled:
                self._used_bytes = 0  # an interrupted `put_record` may have added a record without its bytes
            self._settled.notify_all()

    @property
    def has_records(self) -> bool:
        """Whether any single record is not settled yet."""
        with self._lock:
            return any(isinstance(send, PendingRecords) for send in self._unsettled)

    def wait_until(self, is_over: Callable[[], object], timeout: float | None) -> None:
        """Waits until `is_over` returns true, but at most `timeout` seconds. Calls `is_over` again whenever a send has
        ended."""
        self._start_if_possible()
        with self._lock:
            self._settled.wait_for(is_over, timeout)

    def start(self) -> None:
        """Starts a thread as the worker, unless there is a worker or nothing to do. Raises RuntimeError if no thread
        can be started."""
        with self._lock:
            if self._worker is None and self._has_work():
                thread = threading.Thread(target=self.work, name="lakelog-producer-network-thread")
                self._worker = thread
                try:
                    thread.start()
                except BaseException:
                    self._worker = None
                    raise

    def _start_if_possible(self) -> None:
        if self._worker is None:
            with suppress(RuntimeError):  # this process has too many threads
                self.start()

    def _has_work(self) -> bool:
        return bool(self._accumulator or self._pipeline.in_flight)

    def work(self, until: Callable[[], bool] = lambda: False) -> None:
        """If there is no worker, makes this thread the worker until `until` returns true or nothing is left."""
        try:
            with self._lock:
                if self._worker is None:
                    self._worker = threading.current_thread()
                is_worker = self._worker is threading.current_thread()
            if is_worker:
                self._run_pipeline(until)
        finally:
            try:
                self._leave()
            except BaseException:  # an interruption: others would wait for this thread for ever
                self._leave()
                raise

    def _leave(self) -> None:
        with self._lock:
            if self._worker is threading.current_thread():
                self._worker = None
        try:
            self.start()
        except RuntimeError as error:
            logger.error("producer: no thread can be started, so this one carries out the other sends: %s", error)
            self.work()

    def _run_pipeline(self, until: Callable[[], bool]) -> None:
        try:
            while True:
                work = self._pipeline.run(lambda: self._is_cut_short or until())
                carry_out(work, {StepOf: StepOf.answer, Pause: self._pause})
                if self._is_cut_short or until() or not self._linger():
                    break
        except BaseException as error:
            ended = _of_sends(error)
            try:
                self._on_abort()
            finally:
                try:
                    self._pipeline.abort(ended)
                finally:
                    self._end_taken(ended)
            raise
        if self._is_cut_short and self._closed is not None:
            self._pipeline.abort(self._closed)

    def _end_taken(self, error: BaseException) -> None:
        """Fails the sends that were taken from the queue, but were not in flight yet when the interruption came."""
        with self._lock:
            waiting = set(self._accumulator)
            taken = [send for send in self._unsettled if send not in waiting]
        self._settle_each(taken, lambda send: send.end(None, error))

    def _settle_each(self, sends: Collection[PendingSend], end: Callable[[PendingSend], object]) -> None:
        """Ends sends, and forgets each that is settled. An interruption may have kept its own callback from that."""
        try:
            settle_each(partial(end, send) for send in sends)
        finally:
            for send in sends:
                if send.future.done():
                    self._forget(send, None)

    @property
    def works_here(self) -> bool:
        """Whether this thread is the worker, or ends sends in `close`. Callbacks of futures run in such a thread."""
        thread = threading.current_thread()
        return self._worker is thread or thread in self._closers

    def check_may_wait(self) -> None:
        """Raises IllegalStateException in a callback of a future: it would wait for sends that its own thread must
        carry out."""
        if self.works_here:
            raise IllegalStateException("a callback must not wait for its producer: use send_async, without flush")

    def flush(self, timeout: float | None) -> None:
        """Waits until all earlier sends are settled. Raises TimeoutException after `timeout` seconds."""
        with self._lock:
            futures = {send.future for send in self._unsettled}
            self._accumulator.hurry()
        self._woken.set()
        deadline = None if timeout is None else time.monotonic() + timeout
        self.work(
            lambda: all(future.done() for future in futures) or (deadline is not None and time.monotonic() >= deadline)
        )
        left = wait(futures, None if deadline is None else max(0.0, deadline - time.monotonic())).not_done
        if left:
            raise TimeoutException(f"{len(left)} sends are not settled in time")

    def close(self, timeout: float | None) -> None:
        """Refuses new sends, and waits until all others are settled. Those that are not settled after `timeout` seconds
        fail with IllegalStateException; nobody knows whether their records are in a log."""
        with self._lock:
            self._closed = self._closed or IllegalStateException("the producer was closed before the send was settled")
            self._settled.notify_all()  # callers that wait for memory
        try:
            if not self._is_cut_short:
                self.flush(timeout)
        except TimeoutException:
            self._is_cut_short = True
        if self._is_cut_short:
            self._settle_all(self._closed)

    def _settle_all(self, error: BaseException) -> None:
        """Fails all sends that are not settled. A send that has begun keeps its records, because a worker that hangs in
        a commit may still read them. The worker frees them once it goes on."""
        self._woken.set()
        self._closers.add(threading.current_thread())
        try:
            unsent = set(self._take(self._accumulator.clear))
            with self._lock:
                left = list(self._unsettled)
            self._settle_each(left, lambda send: (send.end if send in unsent else send.settle)(None, error))
        finally:
            self._closers.discard(threading.current_thread())

    def _take(self, remove: Callable[[], list[PendingSend]]) -> list[PendingSend]:
        """Removes sends from the queue. From now on they cannot be cancelled. If one was cancelled before, this
        notifies the threads that wait for its future."""
        with self._lock:
            sends = remove()
            for send in sends:
                send.future.set_running_or_notify_cancel()
        return sends

    def _next(self) -> SendInFlight | None:
        while True:
            sends = self._take(self._accumulator.take)
            if not sends:
                return None
            try:
                going = [send for send in sends if send.try_begin()]
                if going:
                    return self._begin(going)
            except BaseException as error:
                settle_each(partial(send.end, None, _of_sends(error)) for send in sends)
                if not isinstance(error, Exception):  # Ctrl-C or `sys.exit()` ends this thread
                    raise

    def _linger(self) -> bool:
        """Waits until the first send may be ready, or one may have expired. Returns whether there was a send to wait
        for. Called while nothing is in flight."""
        self._woken.clear()
        self._expire()
        left = self._ready_in()
        if left:
            self._woken.wait(min(left, max(0.0, self._accumulator.expires_at - time.monotonic())))
        return left is not None

    def _ready_in(self) -> float | None:
        with self._lock:
            return self._accumulator.seconds_left()

    def _expire(self) -> None:
        settle_each(send.expire for send in self._take(self._accumulator.take_expired))

    def _pause(self, step: Pause) -> bool:
        """Waits until the next poll is due, or until a send is ready and may be in flight beside the others. Returns
        True in the second case: that send begins before the poll. Sends expire at their deadlines meanwhile."""
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
            until = min(poll_at, self._accumulator.expires_at, math.inf if left is None else now + left)
            wait_ms = max(0, math.ceil((until - now) * 1000))
            if not pause(wait_ms, step.deadline, self._woken) and until == poll_at:
                break
        self._is_woken_for_poll = False
        return False


def settle_each(ends: Iterable[Callable[[], object]]) -> None:
    """Calls all of `ends`, each of which ends one send. Then raises the first error that one of them has raised.

    The end of a send calls the callbacks of its future, which are a user's code. If one calls `sys.exit()`, or Ctrl-C
    interrupts it, the other sends must not stay unsettled for ever.
    """
    first: BaseException | None = None
    for end in ends:
        try:
            end()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


def _of_sends(error: BaseException) -> BaseException:
    """The error that sends get if `error` ends the thread that carries them out. Ctrl-C and `sys.exit()` must end that
    thread only: if futures raised them, they would end each thread that waits for one."""
    if isinstance(error, Exception):
        return error
    ended = IllegalStateException(
        f"{type(error).__name__} has ended the thread that was sending: nobody knows whether a log has the records"
    )
    ended.__cause__ = error
    return ended
