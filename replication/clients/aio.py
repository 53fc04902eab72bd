"""A producer and a consumer for `asyncio`, in the style of confluent-kafka's AIOProducer and AIOConsumer.

Both are layers over a client that the caller makes. Its blocking calls run in threads of the layer, two of a producer
and one of a consumer, however many tasks use them. Tasks take turns.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Self, TypeVar

import pyarrow as pa

from lakelog.replication.clients.arguments import seconds
from lakelog.replication.clients.consumer import Consumer, FetchedRecords
from lakelog.replication.clients.delivery_reports import ProducedMessage
from lakelog.replication.clients.group_consumer import Listener
from lakelog.replication.clients.one_process import OneProcess
from lakelog.replication.clients.producer import Producer
from lakelog.replication.errors import IllegalStateException, InvalidRequestException

_SLICE_SECONDS = 0.5  # a poll whose task was cancelled occupies the thread no longer

logger = logging.getLogger(__name__)

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


async def _run(
    thread: ThreadPoolExecutor, call: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs
) -> Answer:
    """Runs a call in the thread. If the task is cancelled, the call ends there, or does not begin."""
    return await asyncio.wrap_future(thread.submit(call, *given, **named))


class AIOProducer(OneProcess):
    """A `Producer` for the tasks of one event loop. The end of an `async with` block closes it.

        async with AIOProducer(Producer("/lake/cluster")) as producer:
            delivered = await producer.produce("orders", value="v", key="k")
            message = await delivered

    Raises InvalidRequestException for another `producer` than a Producer.
    """

    def __init__(self, producer: Producer) -> None:
        if not isinstance(producer, Producer):
            raise InvalidRequestException(f"producer is {producer!r:.80}: give a Producer, as in Producer(cluster_uri)")
        self._producer = producer
        self._calls = ThreadPoolExecutor(1, "lakelog-aio-producer")
        self._reports = ThreadPoolExecutor(1, "lakelog-aio-delivery")
        self._is_reporting = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def produce(
        self, topic: str, value: object = None, key: object = None, partition: int | None = None,
        timestamp: dt.datetime | int | None = None, headers: object = None,
    ) -> asyncio.Future[ProducedMessage]:  # fmt: skip
        """Begins to send one record, and returns the future of its message, which raises the record's error. The call
        itself waits while earlier records leave no memory for this one.

        A task that is cancelled in this call leaves the record sent once, or not at all. To cancel the future does not
        stop the record: if it fails later, the error is logged. Raises as `Producer.produce`.
        """
        loop = asyncio.get_running_loop()
        delivered: asyncio.Future[ProducedMessage] = loop.create_future()

        def on_delivery(error: BaseException | None, message: ProducedMessage) -> None:
            try:
                loop.call_soon_threadsafe(_settle, delivered, error, message)
            except RuntimeError:  # the loop is closed
                _log(error, message)

        try:
            await _run(self._calls, self._begin, topic, value, key, partition, on_delivery, timestamp, headers)
        except asyncio.CancelledError:
            delivered.cancel()
            raise
        return delivered

    def _begin(self, *given: object) -> None:
        self._producer.produce(*given)  # type: ignore[arg-type]
        if not self._is_reporting:
            self._is_reporting = True
            self._reports.submit(self._report)

    def _report(self) -> None:
        """Waits for reports until no record is left."""
        self._is_reporting = False  # a record that is produced from now on lets this run again
        while self._producer.poll(None):
            pass

    async def flush(self, timeout: float | None = None) -> None:
        """Waits until all records are settled that were produced before. Raises as `Producer.flush`."""
        seconds(timeout, "timeout")
        await _run(self._calls, lambda: None)  # after the calls of `produce` that wait
        await _run(self._reports, self._producer.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Refuses new records, and waits until all others are settled, see `Producer.close`. It goes on if its task is
        cancelled."""
        await asyncio.shield(_run(self._calls, self._producer.close, timeout))


def _settle(delivered: asyncio.Future[ProducedMessage], error: BaseException | None, message: ProducedMessage) -> None:
    if delivered.cancelled():
        _log(error, message)
    elif error is not None:
        delivered.set_exception(error)
    else:
        delivered.set_result(message)


def _log(error: BaseException | None, message: ProducedMessage) -> None:
    if error is not None:
        logger.error("producer: a record to %s was not delivered, and nobody waits for it: %s", message.topic(), error)


class AIOConsumer(OneProcess):
    """A `Consumer` for the tasks of one event loop. The end of an `async with` block closes it.

        async with AIOConsumer(Consumer("/lake/cluster", "billing")) as consumer:
            await consumer.subscribe(["orders"])
            async for records in consumer:
                print(records.num_rows)

    Its methods are those of `Consumer`, and raise the same errors. The calls of tasks are carried out one after the
    other. A call whose task is cancelled has no effect, or the whole one. For other methods use
    the Consumer, while no task waits for this object. Raises InvalidRequestException for another `consumer` than a
    Consumer.
    """

    def __init__(self, consumer: Consumer) -> None:
        if not isinstance(consumer, Consumer):
            raise InvalidRequestException(f"consumer is {consumer!r:.80}: give a Consumer, as in Consumer(cluster_uri)")
        self._consumer = consumer
        self._calls = ThreadPoolExecutor(1, "lakelog-aio-consumer")
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *more: object) -> None:
        self._is_closed = True
        await asyncio.shield(_run(self._calls, self._consumer.__exit__, kind, *more))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.Table:
        """The next records, one at least. The iteration ends once the consumer is closed."""
        while not self._is_closed:
            records = await self.poll()
            if records.num_rows:
                return records
        raise StopAsyncIteration

    async def poll(self, timeout: float = 1.0) -> pa.Table:
        """The next records, see `Consumer.poll`. If its task is cancelled, the next poll has the records, and neither
        `commit` nor `close` commits them."""
        limit = seconds(timeout, "timeout")
        deadline = math.inf if limit is None else time.monotonic() + limit
        while True:
            left = max(0.0, min(_SLICE_SECONDS, deadline - time.monotonic()))
            polled = self._calls.submit(self._consumer.poll, left)
            try:
                records = await asyncio.wrap_future(polled)
            except asyncio.CancelledError:
                self._calls.submit(self._give_back, polled)  # before any later call of a task
                raise
            if records.num_rows or time.monotonic() >= deadline:
                return records

    def _give_back(self, polled: Future[pa.Table]) -> None:
        """Lets the consumer read again what a poll has returned to nobody."""
        if polled.cancelled() or polled.exception() is not None:
            return
        first = polled.result().group_by(["topic", "partition"]).aggregate([("offset", "min")])
        for row in first.to_pylist():
            try:
                self._consumer.seek(row["topic"], row["partition"], row["offset_min"])
            except IllegalStateException as error:
                logger.warning("consumer: %s", error)

    async def subscribe(
        self, topics: Collection[str], on_assign: Listener | None = None, on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:  # fmt: skip
        """Joins the group, see `Consumer.subscribe`. Listeners are called in the thread of this object."""
        await _run(self._calls, self._consumer.subscribe, topics, on_assign, on_revoke, on_lost)

    async def unsubscribe(self) -> None:
        """Leaves the group, see `Consumer.unsubscribe`."""
        await _run(self._calls, self._consumer.unsubscribe)

    async def commit(self, offsets: Mapping[str, Mapping[int, int]] | None = None) -> None:
        """Stores the group's offsets, see `Consumer.commit`."""
        await _run(self._calls, self._consumer.commit, offsets)

    async def committed(self, topic: str) -> dict[int, int]:
        """The offsets that the group committed last, see `Consumer.committed`."""
        return await _run(self._calls, self._consumer.committed, topic)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Reads on from this offset, see `Consumer.seek`."""
        await _run(self._calls, self._consumer.seek, topic, partition, offset)

    async def fetch(
        self, topic: str, offsets: Mapping[int, int], min_bytes: int = 1, max_wait_ms: int = 500,
        max_bytes: int = 52_428_800, topic_id: str | None = None,
    ) -> dict[int, FetchedRecords]:  # fmt: skip
        """Fetches committed records, see `Consumer.fetch`. Other calls wait for it up to `max_wait_ms`."""
        return await _run(
            self._calls, self._consumer.fetch, topic, offsets, min_bytes, max_wait_ms, max_bytes, topic_id
        )

    async def close(self) -> None:
        """Commits, if `enable.auto.commit`, and leaves the group, see `Consumer.close`. It goes on if its task is
        cancelled."""
        self._is_closed = True
        await asyncio.shield(_run(self._calls, self._consumer.close))
