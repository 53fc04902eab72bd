"""Clients in `asyncio` and in `with` blocks."""

import asyncio
import logging
import threading

import pytest

from lakelog.replication.clients.aio import AIOConsumer, AIOProducer
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.errors import (
    IllegalStateException,
    InvalidGroupIdException,
    InvalidRecordException,
    InvalidRequestException,
    TimeoutException,
)
from tests.clients.world import LONG, RARELY, filled_world, led_world
from tests.processes import wait_until
from tests.storage.logs import P0, TOPIC, values


@pytest.fixture
def world(root):
    return led_world(root)


def record(value):
    return [{"value": value, "partition": 0}]


def test_sends_are_awaited_while_the_event_loop_goes_on(world):
    """Nothing is acknowledged before another task has published the HW."""

    async def publish():
        await asyncio.to_thread(
            wait_until, lambda: world.logs[1].refresh().partition(P0).log_end_offset == 2, "both records"
        )
        world.say(2)

    async def run():
        async with Producer(world.uri) as producer:
            task = asyncio.create_task(publish())
            sends = [asyncio.wrap_future(producer.send_async(TOPIC, record(v), LONG)) for v in ("a", "b")]
            answers = await asyncio.gather(*sends)
            await task
        with pytest.raises(IllegalStateException, match="the producer is closed"):
            producer.send(TOPIC, record("c"))
        async with Consumer(world.uri) as consumer:
            fetched = await asyncio.to_thread(consumer.fetch, TOPIC, {0: 0})
        return [answer[0].base_offset for answer in answers], fetched[0].records["value"].to_pylist()

    assert asyncio.run(run()) == ([0, 1], [b"a", b"b"])


def test_an_await_that_is_cancelled_cancels_a_send_that_has_not_begun(world):
    async def run():
        async with Producer(world.uri, acks=1, linger_ms=LONG) as producer:
            waiting = asyncio.wrap_future(producer.send_async(TOPIC, record("a"), LONG))
            waiting.cancel()
            await asyncio.sleep(0)

    asyncio.run(run())
    assert world.logs[1].refresh().partition(P0).log_end_offset == 0


def test_a_consumer_is_a_context_manager(world):
    with Consumer(world.uri, "g") as consumer:
        consumer.commit({TOPIC: {0: 0}})
    assert world.consumer("g").committed(TOPIC) == {0: 0}


class HeldProducer(Producer):
    """Produces nothing until `gate` is open."""

    def produce(self, *given, **named):
        self.came.set()
        assert self.gate.wait(60)
        super().produce(*given, **named)


def held(made):
    made.came, made.gate = threading.Event(), threading.Event()
    return made


def test_a_produced_record_is_a_future_of_its_message(world):
    async def run():
        async with AIOProducer(Producer(world.uri, acks=1)) as producer:
            sent = [await producer.produce(TOPIC, value=value, partition=0) for value in "abc"]
            return await asyncio.gather(*sent)

    messages = asyncio.run(run())
    assert [(message.partition(), message.offset(), message.value()) for message in messages] == [
        (0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c"),
    ]  # fmt: skip
    assert values(world.logs[1], P0) == [b"a", b"b", b"c"]


def test_many_tasks_share_two_threads_of_a_producer_and_flush_waits_for_their_records(world):
    before = set(threading.enumerate())

    async def run():
        async with AIOProducer(Producer(world.uri, acks=1)) as producer:
            sent = await asyncio.gather(*(producer.produce(TOPIC, value=f"{n}", partition=0) for n in range(200)))
            await producer.flush()
            await asyncio.sleep(0)
            assert all(each.done() for each in sent)
            return sum(thread.name.startswith("lakelog-aio") for thread in set(threading.enumerate()) - before)

    assert asyncio.run(run()) <= 2
    assert values(world.logs[1], P0) == [b"%d" % n for n in range(200)]


def test_errors_of_a_record_are_raised_by_its_call_or_by_its_future(world):
    async def run():
        async with AIOProducer(Producer(world.uri, acks=1, delivery_timeout_ms=1, linger_ms=0)) as producer:
            with pytest.raises(InvalidRecordException, match="value"):
                await producer.produce(TOPIC, value=5)
            with pytest.raises(InvalidRequestException, match="timeout is 'x': give a number of seconds"):
                await producer.flush("x")
            world.change(leader=-1, leader_epoch=1)
            with pytest.raises(TimeoutException):
                await (await producer.produce(TOPIC, value="a", partition=0))
        with pytest.raises(IllegalStateException, match="the producer is closed"):
            await producer.produce(TOPIC, value="b")

    asyncio.run(run())


def test_a_call_of_produce_that_is_cancelled_sends_its_record_once_or_not_at_all(world):
    async def run():
        client = held(HeldProducer(world.uri, acks=1))
        async with AIOProducer(client) as producer:
            begun, waiting = (asyncio.create_task(producer.produce(TOPIC, value=v, partition=0)) for v in "ab")
            await asyncio.to_thread(client.came.wait, 60)
            for task in (begun, waiting):
                task.cancel()
            done = await asyncio.gather(begun, waiting, return_exceptions=True)
            client.gate.set()
        return done

    assert [type(each) for each in asyncio.run(run())] == [asyncio.CancelledError] * 2
    assert values(world.logs[1], P0) == [b"a"]


def test_a_record_that_fails_after_its_future_was_cancelled_is_logged(world, caplog):
    async def run():
        async with AIOProducer(Producer(world.uri, acks=1, delivery_timeout_ms=500)) as producer:
            world.change(leader=-1, leader_epoch=1)
            (await producer.produce(TOPIC, value="a", partition=0)).cancel()
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "a record to flights was not delivered, and nobody waits for it: " in caplog.text


def member(uri, kind=Consumer):
    return kind(uri, "g", auto_offset_reset="earliest", **RARELY)


def test_a_consumer_of_a_group_is_iterated_and_commits_at_its_end(root):
    world, found = filled_world(root), []

    async def run():
        async with AIOConsumer(member(world.uri)) as consumer:
            await consumer.subscribe([TOPIC])
            async for records in consumer:
                found.extend(records["offset"].to_pylist())
                if len(found) == 5:
                    break
        return [records async for records in consumer]

    assert asyncio.run(run()) == []
    assert sorted(found) == [0, 0, 1, 1, 2]
    assert world.consumer("g").committed(TOPIC) == {0: 3, 1: 2}


class HeldConsumer(Consumer):
    """Keeps the first records until `gate` is open."""

    def poll(self, timeout=1.0):
        records = super().poll(timeout)
        if records.num_rows:
            self.came.set()
            assert self.gate.wait(60)
        return records


def test_ap_04_the_records_of_a_poll_that_is_cancelled_are_neither_lost_nor_committed(root):
    world = filled_world(root)

    async def run():
        client = held(member(world.uri, HeldConsumer))
        async with AIOConsumer(client) as consumer:
            await consumer.subscribe([TOPIC])
            task = asyncio.create_task(consumer.poll(-1))
            await asyncio.to_thread(client.came.wait, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            client.gate.set()
            await consumer.commit()
            committed = await consumer.committed(TOPIC)
            return committed, (await consumer.poll(60)).num_rows

    committed, count = asyncio.run(run())
    assert not any(committed.values())
    assert count == 5
    assert world.consumer("g").committed(TOPIC) == {0: 3, 1: 2}


def test_a_poll_that_is_cancelled_before_it_begins_keeps_the_records_of_the_poll_before(root):
    world = filled_world(root)

    async def run():
        async with AIOConsumer(member(world.uri)) as consumer:
            await consumer.subscribe([TOPIC])
            first = await consumer.poll(60)
            task = asyncio.create_task(consumer.poll(60))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await consumer.commit()
            return first.num_rows

    assert asyncio.run(run()) == 5
    assert world.consumer("g").committed(TOPIC) == {0: 3, 1: 2}


def test_calls_of_tasks_take_turns_at_a_consumer_and_raise_its_errors(root):
    world = filled_world(root)

    async def run():
        async with AIOConsumer(Consumer(world.uri)) as consumer:
            fetched = await asyncio.gather(*(consumer.fetch(TOPIC, {0: offset}) for offset in range(3)))
            with pytest.raises(InvalidGroupIdException):
                await consumer.commit({TOPIC: {0: 0}})
            with pytest.raises(InvalidRequestException, match="timeout is 'x': give a number of seconds"):
                await consumer.poll("x")
        return [each[0].records.num_rows for each in fetched]

    assert asyncio.run(run()) == [3, 2, 1]


@pytest.mark.parametrize(("kind", "client"), [(AIOProducer, "Producer"), (AIOConsumer, "Consumer")])
def test_what_is_no_client_is_refused(kind, client):
    with pytest.raises(InvalidRequestException, match=f"{client.lower()} is 'x': give a {client}, as in {client}"):
        kind("x")
