"""Clients in `asyncio` and in `with` blocks."""

import asyncio

import pytest

from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.errors import IllegalStateException
from tests.clients.world import LONG, led_world
from tests.processes import wait_until
from tests.storage.logs import P0, TOPIC


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
