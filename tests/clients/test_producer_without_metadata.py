"""A producer while the cluster root cannot be read."""

from pathlib import Path

import pytest

from lakelog.replication.clients.producer import Producer
from lakelog.replication.errors import KafkaStorageException, TimeoutException
from tests.clients.world import World
from tests.processes import wait_until
from tests.storage.logs import TOPIC, values


def test_ap_02_a_producer_goes_by_the_partitions_that_it_knows(root):
    """More than one batch is produced meanwhile. Kafka: `ProducerMetadata`."""
    world, told = World(root), []
    world.say(0)
    cluster, away = Path(world.uri), Path(f"{world.uri}-away")

    def report(error, message):
        told.append((error, message.offset(), message.value()))

    with Producer(world.uri, acks=1, linger_ms=1, batch_size=200) as producer:
        producer.produce(TOPIC, "0", partition=0, on_delivery=report)
        wait_until(lambda: len(values(world.logs[1])) == 1, "the first record")
        cluster.rename(away)
        producer._singles._counts.clear()  # its second is over
        for number in range(1, 10):
            producer.produce(TOPIC, f"{number}", partition=0, on_delivery=report)
        with pytest.raises(TimeoutException):
            producer.flush(0.1)
        with pytest.raises(KafkaStorageException):
            producer.produce("unknown", "value")
        away.rename(cluster)
    assert told == [(None, n, b"%d" % n) for n in range(10)]
