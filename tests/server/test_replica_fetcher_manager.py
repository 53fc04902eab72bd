"""Which fetcher gets which partitions. The fetchers only record their calls."""

import time

import pytest

from lakelog.replication.protocol.fetch_state import FetchStates, InitialFetchState, fetcher_id
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId, ReplicaFetcherManager, SourceBroker


class RecordingFetcher:
    """Records its calls."""

    def __init__(self, key, root, events):
        self.key, self.root, self._events = key, root, events
        self.states = FetchStates(time.monotonic)

    def start(self):
        self._events.append(("start", self.key))

    def add_partitions(self, partitions):
        self._events.append(("add", self.key, sorted(partitions)))
        self.states.assign(partitions)

    def shutdown(self, seconds=None):
        self._events.append(("shutdown", self.key))


class World:
    """A manager over recorders; brokers 1 to 3 are registered."""

    def __init__(self, num_replica_fetchers=1):
        self.events = []
        self.sources = {broker: SourceBroker(root, 1) for broker, root in ((1, "/one"), (2, "/two"), (3, "/three"))}
        self.manager = ReplicaFetcherManager(num_replica_fetchers, self._create, self.sources.get)

    def _create(self, key, root):
        return RecordingFetcher(key, root, self.events)

    def add(self, *partitions):
        self.manager.add_fetcher_for_partitions(dict(partitions))


def followed(partition, leader, topic="t", epoch=0):
    return TopicIdPartition(topic, partition), InitialFetchState(topic, leader, epoch, 0)


@pytest.fixture
def world():
    return World()


def test_fm_02_partitions_of_one_leader_share_a_fetcher(world):
    world.add(followed(0, leader=1), followed(1, leader=1), followed(2, leader=2))
    counts = {key.broker_id: len(f.states) for key, f in world.manager.fetchers().items()}
    assert counts == {1: 2, 2: 1}


def test_fm_03_several_fetchers_divide_partitions_by_fetcher_id():
    world = World(num_replica_fetchers=3)
    world.add(*(followed(partition, leader=1) for partition in range(9)))
    for key, fetcher in world.manager.fetchers().items():
        assert {fetcher_id("t", p.partition, 3) for p in fetcher.states.all()} == {key.fetcher_id}
    assert sum(len(f.states) for f in world.manager.fetchers().values()) == 9


def test_fm_04_a_new_fetcher_is_started_before_it_gets_its_partitions(world):
    world.add(followed(0, leader=1))
    key = BrokerIdAndFetcherId(1, 0)
    assert world.events == [("start", key), ("add", key, [TopicIdPartition("t", 0)])]


def test_fm_04_an_existing_fetcher_is_reused(world):
    world.add(followed(0, leader=1))
    world.add(followed(1, leader=1))
    assert [event[0] for event in world.events] == ["start", "add", "add"]


@pytest.mark.parametrize("source", [SourceBroker("/elsewhere", 1), SourceBroker("/one", 2)], ids=["moved", "anew"])
def test_fm_05_a_source_broker_with_a_new_root_or_epoch_gets_another_fetcher(world, source):
    """Another log may be at the same URI now, so nothing read from the former one counts."""
    world.add(followed(0, leader=1))
    world.sources[1] = source
    for _ in range(2):
        world.add(followed(0, leader=1))
    assert [event[0] for event in world.events] == ["start", "add", "shutdown", "start", "add", "add"]
    (fetcher,) = world.manager.fetchers().values()
    assert fetcher.root == source.root


def test_fm_04_a_leader_that_is_not_registered_is_left_out(world):
    world.add(followed(0, leader=9), followed(1, leader=1))
    assert [key.broker_id for key in world.manager.fetchers()] == [1]


def test_fm_07_an_emptied_fetcher_runs_on(world):
    world.add(followed(0, leader=1))
    world.manager.remove_fetcher_for_partitions([TopicIdPartition("t", 0)])
    (fetcher,) = world.manager.fetchers().values()
    assert len(fetcher.states) == 0
    assert ("shutdown", fetcher.key) not in world.events


def test_fm_08_idle_fetchers_are_stopped_and_forgotten(world):
    world.add(followed(0, leader=1), followed(1, leader=2))
    world.manager.remove_fetcher_for_partitions([TopicIdPartition("t", 0)])
    world.manager.shutdown_idle_fetchers()
    assert [key.broker_id for key in world.manager.fetchers()] == [2]
    assert world.events[-1] == ("shutdown", BrokerIdAndFetcherId(1, 0))


def test_br_02_fm_01_the_state_of_a_partition_is_its_fetchers(world):
    world.add(followed(0, leader=1), followed(1, leader=2, epoch=5))
    assert world.manager.fetch_states()[TopicIdPartition("t", 1)].leader_epoch == 5
    assert TopicIdPartition("t", 7) not in world.manager.fetch_states()


def test_br_04_closing_stops_every_fetcher(world):
    world.add(followed(0, leader=1), followed(1, leader=2))
    world.manager.close_all_fetchers()
    assert world.manager.fetchers() == {}
    assert sorted(event[1].broker_id for event in world.events if event[0] == "shutdown") == [1, 2]
