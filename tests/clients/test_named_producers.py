"""Named producers: one producer at a time has a name, and keeps it as long as it uses it."""

import time

import pyarrow as pa
import pytest

from lakelog.replication.clients.producer import Producer
from lakelog.replication.errors import ProducerFencedException
from lakelog.replication.storage.delta.commit_format import last_version
from tests.clients.world import World
from tests.storage.logs import P0, TOPIC, values

HALF_OF_A_WEEK = 7 * 86400 / 2


@pytest.fixture
def world(root):
    return World(root)


def send(producer, value):
    (answer,) = producer.send(TOPIC, pa.table({"value": [value], "partition": [0]})).values()
    return answer.error.name if answer.error else None


def epochs(world):
    return [batch.header.producer_epoch for batch in world.logs[1].refresh().partition(P0).batches]


def test_kip_360_a_producer_that_was_fenced_does_not_take_its_name_back(world):
    """A failed send uses its identity up. The next send must not fence the producer that has the name now."""
    old, new = (Producer(world.uri, 1, "importer") for _ in range(2))
    assert send(new, b"a") is None
    assert send(old, b"lost") == "ProducerFencedException"
    for _ in range(2):
        with pytest.raises(ProducerFencedException, match="under the name importer"):
            send(old, b"lost")
    assert send(new, b"b") is None
    assert values(world.logs[1]) == [b"a", b"b"]


@pytest.mark.parametrize("clock", ["monotonic", "time"], ids=["at work", "asleep"])
def test_ap_06_a_producer_uses_its_name_before_it_can_expire(world, monkeypatch, clock):
    """The monotonic clock of a sleeping machine may stand still."""
    producer, now = Producer(world.uri, 1, "importer"), getattr(time, clock)
    assert send(producer, b"a") is None
    for passed in (HALF_OF_A_WEEK - 60, HALF_OF_A_WEEK):
        monkeypatch.setattr(time, clock, lambda passed=passed: now() + passed)
        assert send(producer, b"b") is None
    monkeypatch.undo()
    assert epochs(world) == [0, 0, 1]
    assert send(Producer(world.uri, 1, "importer"), b"c") is None
    assert epochs(world)[-1] == 2


def test_ap_06_without_a_name_nothing_is_renewed(world, monkeypatch):
    producer = Producer(world.uri, 1)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert [send(producer, b"a"), send(producer, b"b")] == [None, None]
    assert last_version(world.cluster.root.child("producers")) == 0
