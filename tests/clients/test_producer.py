"""A producer with acks=1 on real tables without brokers: the tests make the leader's log accept appends."""

import dataclasses

import pyarrow as pa
import pytest

from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidTopicException, NotEnoughReplicasException
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, Role
from lakelog.replication.protocol.rounds.send_round import RecordMetadata
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.copied_roots import copied
from tests.registrations import joined, register
from tests.storage.delta.answers import lose_an_answer, refuse_all


class World:
    """A cluster whose broker 1 leads both partitions of topic t."""

    def __init__(self, root):
        home, self.broker = StorageRoot.of(root).child("cluster"), StorageRoot.of(root).child("broker-1")
        cluster_id = copied(format_cluster, home, Config())
        copied(format_broker, self.broker, cluster_id, 1)
        self.cluster = Cluster.open(home.uri)
        register(home, 1, self.broker)
        self.cluster.topics.change([Topic("t", "id", 2, {})], (), {"who": "test"})
        self.partitions = [joined(new_partition("t", "id", p, (1,), {1})) for p in (0, 1)]
        self.cluster.metadata.put(self.partitions, {"who": "test"})
        self.log = ReplicaLog.open(self.broker.child("log"))
        self.become(LEADER, 0)

    def become(self, kind, epoch, partition=None):
        chosen = [p.topic_id_partition for p in self.partitions if partition in (None, p.partition)]
        self.log.become(dict.fromkeys(chosen, Role(epoch, kind)), "test")

    def values(self, partition=0):
        return self.log.read(self.partitions[partition].topic_id_partition, 0)["value"].to_pylist()

    def producer(self, **options):
        return Producer(self.cluster.root.uri, acks=1, **options)


@pytest.fixture
def world(root):
    return World(root)


def records(*values, partition=0):
    return pa.table({"value": list(values), "partition": [partition] * len(values)})


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ([{"value": "a", "partition": 0}, {"value": b"b", "partition": 0}], [b"a", b"b"]),
        ({"value": "alone", "partition": 0}, [b"alone"]),
        ([], []),
    ],
    ids=["a list of dicts", "a dict", "an empty list"],
)
def test_records_of_python_are_sent(world, given, values):
    answers = world.producer().send("t", given)
    assert [answer.error for answer in answers.values()] == [None][: len(values)]
    assert world.values() == values


def test_text_is_a_value_of_some_partition(world):
    world.producer().send("t", ["x", b"y"])
    assert world.values(0) + world.values(1) == [b"x", b"y"]


@pytest.mark.parametrize("topic", [5, b"t"])
def test_a_topic_that_is_no_text_is_refused(world, topic):
    with pytest.raises(InvalidTopicException, match="it must be text"):
        world.producer().send(topic, ["x"])


@pytest.mark.parametrize("landed", [True, False], ids=["it had landed", "it had not"])
def test_ap_06_sent_again_adds_nothing(world, monkeypatch, landed):
    """A commit whose answer was lost is decided again. The sequence numbers show which records are there already."""
    lost = lose_an_answer(monkeypatch, lambda _, cause: cause["why"] == "append", landed)
    producer = world.producer()
    (answer,) = producer.send("t", records(b"a", b"b")).values()
    assert lost
    assert (answer.base_offset, answer.last_offset, answer.error) == (0, 1, None)
    (answer,) = producer.send("t", records(b"c")).values()
    assert (answer.base_offset, answer.error) == (2, None)
    assert world.values() == [b"a", b"b", b"c"]


def test_an_answer_shows_its_error_first():
    refused = RecordMetadata("t", 1, 3, error=NotEnoughReplicasException("1 of 2"))
    assert repr({1: refused}).startswith("{1: RecordMetadata(error=NotEnoughReplicasException('1 of 2'), topic='t'")
    assert "error" not in repr(RecordMetadata("t", 1, 3, 0, 2, 0))


def test_a_partition_that_is_refused_does_not_hold_up_the_others(world):
    world.become(FOLLOWER, 1, partition=1)
    both = pa.table({"value": [b"a", b"b"], "partition": [0, 1]})
    answers = world.producer().send("t", both, timeout_ms=100)
    assert answers[0].error is None
    assert answers[1].error is not None
    assert answers[1].error.name == "FencedLeaderEpochException"
    assert (world.values(0), world.values(1)) == ([b"a"], [])


def test_ep_06_a_leader_that_is_not_ready_yet_is_waited_for(world):
    """The metadata has a new leader epoch that the log does not have yet."""
    new = dataclasses.replace(world.partitions[0], leader_epoch=1, partition_epoch=1)
    world.cluster.metadata.put([new], {"who": "test"})
    (answer,) = world.producer().send("t", records(b"a"), timeout_ms=100).values()
    assert answer.error is not None
    assert answer.error.name == "UnknownLeaderEpochException"
    world.become(LEADER, 1, partition=0)
    (answer,) = world.producer().send("t", records(b"a")).values()
    assert (answer.base_offset, answer.leader_epoch, answer.error) == (0, 1, None)


def test_after_a_failed_send_the_next_one_begins_anew(world):
    """The sequence numbers of a failed append are not used again, because its outcome is unknown."""
    producer = world.producer()
    producer.send("t", records(b"a"))
    world.become(FOLLOWER, 1, partition=0)
    (failed,) = producer.send("t", records(b"lost"), timeout_ms=50).values()
    assert failed.error is not None
    world.cluster.metadata.put([dataclasses.replace(world.partitions[0], leader_epoch=2)], {"who": "test"})
    world.become(LEADER, 2, partition=0)
    (answer,) = producer.send("t", records(b"b")).values()
    assert answer.error is None
    assert world.values() == [b"a", b"b"]


def test_a_log_that_cannot_be_written_is_an_error_of_its_partitions(world, monkeypatch):
    producer = world.producer()
    refuse_all(monkeypatch)
    (answer,) = producer.send("t", records(b"a"), timeout_ms=50).values()
    assert answer.error is not None
    assert answer.error.name == "KafkaStorageException"
    assert "connection refused" in str(answer.error)
    assert world.values() == []


def test_ap_06_acks_all_is_refused_if_nobody_here_knows_how_many_replicas_that_needs(world):
    """A newer version may allow other values. Sends that wait for no follower do not need it."""
    configs = {"min.insync.replicas": "a majority", "retention.ms": "a week"}
    world.cluster.topics.change([Topic("t", "id", 2, configs)], (), {"who": "test"})
    before = world.log.refresh().version
    with Producer(world.cluster.root.uri, acks="all") as producer:
        answers = producer.send("t", [{"value": b"1", "partition": 0}])
    assert str(answers[0].error) == (
        "topic t: min.insync.replicas is 'a majority', it must be an integer from 1 to 2147483647"
    )
    assert world.log.refresh().version == before
    with Producer(world.cluster.root.uri, acks=1) as producer:
        assert producer.send("t", [{"value": b"1", "partition": 0}])[0].error is None


def test_nothing_to_send_is_nothing_sent(world):
    version = world.log.refresh().version
    assert world.producer().send("t", records()) == {}
    assert world.log.refresh().version == version
