"""A producer that knows a topic, while the cluster root cannot be read, and one that closes meanwhile."""

import threading
from pathlib import Path

import pytest

from lakelog.replication.clients import accumulator
from lakelog.replication.clients.producer import Producer
from lakelog.replication.errors import KafkaStorageException, TimeoutException, UnknownTopicOrPartitionException
from tests.clients.world import World
from tests.processes import wait_until
from tests.storage.logs import TOPIC, values


@pytest.mark.parametrize("retries", [0, 9])
def test_ap_02_a_producer_goes_by_the_partitions_that_it_knows(root, retries):
    """More than one batch is produced meanwhile, and the wait is no retry. Kafka: `ProducerMetadata`."""
    world, told = World(root), []
    world.say(0)
    cluster, away = Path(world.uri), Path(f"{world.uri}-away")

    def report(error, message):
        told.append((error, message.offset(), message.value()))

    with Producer(world.uri, acks=1, retries=retries, linger_ms=1, batch_size=200) as producer:
        producer.produce(TOPIC, "0", partition=0, on_delivery=report)
        wait_until(lambda: len(values(world.logs[1])) == 1, "the first record")
        cluster.rename(away)
        producer._known[TOPIC] = (*producer._known[TOPIC][:2], 0.0)  # its second is over
        for number in range(1, 10):
            producer.produce(TOPIC, f"{number}", partition=0, on_delivery=report)
        with pytest.raises(TimeoutException):
            producer.flush(0.1)
        with pytest.raises(KafkaStorageException):
            producer.produce("unknown", "value")
        away.rename(cluster)
    assert told == [(None, n, b"%d" % n) for n in range(10)]


def test_a_topic_that_was_deleted_is_refused_at_the_call(root):
    world = World(root)
    with Producer(world.uri, acks=1) as producer:
        producer.send(TOPIC, ["a"])
        world.cluster.topics.change((), [TOPIC], {"who": "test"})
        with pytest.raises(UnknownTopicOrPartitionException):
            producer.send(TOPIC, ["b"])


def test_close_sends_what_another_thread_has_just_taken(root, monkeypatch):
    world, told, make, begun = World(root), [], accumulator.table_of_rows, threading.Event()

    def late(rows):
        begun.set()
        wait_until(lambda: producer._sender._closed, "close")
        return make(rows)

    monkeypatch.setattr(accumulator, "table_of_rows", late)
    producer = Producer(world.uri, acks=1, linger_ms=1)
    producer.produce(TOPIC, "a", partition=0, on_delivery=lambda error, message: told.append((error, message.value())))
    assert begun.wait(30)
    producer.close()
    assert told == [(None, b"a")]
