"""An idempotent producer when the leader changes: no acknowledged record is lost or doubled.

Two brokers on real tables, without processes: a thread does their work by hand.
"""

import dataclasses
import threading

import pyarrow as pa
import pytest

from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.errors import ProducerFencedException
from lakelog.replication.protocol.elections import new_partition, with_leader
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, Role
from lakelog.replication.protocol.producer_identity import ProducerIdentity
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.copied_roots import copied
from tests.processes import wait_until
from tests.registrations import joined, register
from tests.storage.logs import replicate, truncate


class World:
    """Topic t has one partition on brokers 1 and 2; broker 1 leads it."""

    def __init__(self, root):
        home = StorageRoot.of(root).child("cluster")
        cluster_id = copied(format_cluster, home, Config())
        self.logs, self.tables = {}, {}
        for broker in (1, 2):
            mine = StorageRoot.of(root).child(f"broker-{broker}")
            copied(format_broker, mine, cluster_id, broker)
            register(home, broker, mine)
            self.logs[broker], self.tables[broker] = ReplicaLog.open(mine.child("log")), ReplicaTable.open(mine)
        self.cluster = Cluster.open(home.uri)
        self.cluster.topics.change([Topic("t", "id", 1, {})], (), {"who": "test"})
        self.registration = joined(new_partition("t", "id", 0, (1, 2), {1, 2}))
        self.partition = self.registration.topic_id_partition
        self.lead(self.registration)

    def lead(self, registration, high_watermark=0):
        """Writes the metadata, the roles in both logs and the leader's row, in this order."""
        self.registration = registration
        self.cluster.metadata.put([registration], {"who": "test"})
        for broker, log in self.logs.items():
            kind = LEADER if broker == registration.leader else FOLLOWER
            log.become({self.partition: Role(registration.leader_epoch, kind)}, "test")
        self.publish(high_watermark)

    def publish(self, high_watermark):
        for broker, log in self.logs.items():
            leads, state = broker == self.registration.leader, log.refresh()
            own = state.partition(self.partition)
            row = ReplicaStatus(
                "t", "id", 0, broker, 1, self.registration.leader_epoch, LEADER_ROLE if leads else FOLLOWER_ROLE,
                FollowerState.FETCHING, 0, own.log_end_offset, min(high_watermark, own.log_end_offset), own.lineage,
                None, state.version, chain=own.log_end.chain,
            )  # fmt: skip
            self.tables[broker].publish([row], "test")

    def fail_over(self, high_watermark=0):
        """Makes broker 2 the leader under the next epoch, with the log that it has."""
        self.lead(with_leader(self.registration, 2, (2,)), high_watermark)

    def copy(self):
        """The follower fetches all missing records from the leader."""
        replicate(self.logs[1], self.logs[2], self.partition)

    def values(self, broker):
        return self.logs[broker].read(self.partition, 0)["value"].to_pylist()

    def end(self, broker):
        return self.logs[broker].refresh().partition(self.partition).log_end_offset


@pytest.fixture
def world(root):
    return World(root)


def timed(*values):
    """Records with a time of their own, so that those of a second call are the same."""
    return pa.table({"value": list(values), "timestamp": pa.array([0] * len(values), pa.timestamp("us", "UTC"))})


def send_meanwhile(producer, *values):
    """Sends in another thread. The returned function waits for the answer."""
    answers = []
    sending = threading.Thread(target=lambda: answers.append(producer.send("t", timed(*values))))
    sending.start()

    def answer():
        sending.join(30)
        assert answers, "the send has not come back"
        return answers[0][0]

    return answer


def test_ap_07_what_the_new_leader_has_is_acknowledged_and_not_sent_again(world):
    answer = send_meanwhile(Producer(world.cluster.root.uri), b"a", b"b")
    wait_until(lambda: world.end(1) == 2, "the records in the leader's log")
    world.copy()
    world.fail_over(high_watermark=2)
    assert (answer().base_offset, answer().last_offset, answer().leader_epoch, answer().error) == (0, 1, 0, None)
    assert world.values(2) == [b"a", b"b"]


def test_ap_07_a_duplicate_is_waited_for_under_the_epoch_that_it_lies_under(world):
    """A retry to the second leader finds the records of the first one. A third leads before the HW passes them."""
    producer = Producer(world.cluster.root.uri)
    first = Producer(world.cluster.root.uri, acks=1)
    identity = producer._identity
    first._identity = ProducerIdentity(identity.id_and_epoch)  # the answer of this send will be lost
    first.send("t", timed(b"a"))
    world.copy()
    world.fail_over()
    answer = send_meanwhile(producer, b"a")
    wait_until(lambda: [s for s in identity._partitions.values() if s.next], "the answer of the second leader")
    world.lead(with_leader(world.registration, 1, (1,)), high_watermark=1)
    assert (answer().base_offset, answer().leader_epoch, answer().error) == (0, 0, None)
    assert world.values(1) == [b"a"]


def test_ap_07_tr_08_other_records_at_the_same_offsets_and_epoch_acknowledge_nothing(world):
    """The leader's log lost its end, as in a power cut, and then got other records."""
    Producer(world.cluster.root.uri, acks=1).send("t", pa.table({"value": [b"a"]}))
    world.copy()
    truncate(world.logs[1], {world.partition: 0})
    answer = send_meanwhile(Producer(world.cluster.root.uri), b"b")
    wait_until(lambda: world.end(1) == 1, "the record in the log that lost its end")
    world.fail_over(high_watermark=1)
    wait_until(lambda: world.end(2) == 2, "the record in the new leader's log")
    world.publish(high_watermark=2)
    assert (answer().base_offset, answer().leader_epoch, answer().error) == (1, 1, None)
    assert world.values(2) == [b"a", b"b"]


def test_ap_07_what_the_new_leader_lacks_is_sent_to_it_again(world):
    producer = Producer(world.cluster.root.uri)
    first = send_meanwhile(producer, b"a")
    wait_until(lambda: world.end(1) == 1, "the first record")
    world.copy()
    world.publish(high_watermark=1)
    assert first().error is None
    answer = send_meanwhile(producer, b"b", b"c")
    wait_until(lambda: world.end(1) == 3, "the records in the old leader's log")
    world.fail_over(high_watermark=1)
    wait_until(lambda: world.end(2) == 3, "the records in the new leader's log")
    world.publish(high_watermark=3)
    assert (answer().base_offset, answer().leader_epoch, answer().error) == (1, 1, None)
    assert world.values(2) == [b"a", b"b", b"c"]
    batches = world.logs[2].refresh().partition(world.partition).batches
    assert [batch.header.base_sequence for batch in batches] == [0, 1], "the sequence that they had before"


def test_ap_06_a_retry_at_the_new_leader_adds_nothing(world):
    """Every replica's log knows the sequence numbers, from the headers alone."""
    producer = Producer(world.cluster.root.uri, acks=1)
    producer.send("t", timed(b"a", b"b"))
    world.copy()
    world.fail_over(high_watermark=2)
    # As if the answer of the first send had been lost.
    producer._identity = ProducerIdentity(producer._identity.id_and_epoch)
    (answer,) = producer.send("t", timed(b"a", b"b")).values()
    assert (answer.base_offset, answer.last_offset, answer.error) == (0, 1, None)
    assert world.values(2) == [b"a", b"b"]


@pytest.mark.parametrize("name", ["importer", None])
def test_ap_06_a_leader_that_has_lost_what_was_sent_before(world, name):
    """The sequence starts over, under another id, or another epoch of the producer that has the name."""
    producer = Producer(world.cluster.root.uri, acks=1, name=name)
    for value in (b"a", b"b"):
        producer.send("t", pa.table({"value": [value]}))
        world.copy() if value == b"a" else None
    world.fail_over()
    (answer,) = producer.send("t", pa.table({"value": [b"c"]})).values()
    assert answer.error is None
    assert world.values(2) == [b"a", b"c"]
    first, last = (batch.header for batch in world.logs[2].refresh().partition(world.partition).batches)
    assert (last.base_sequence, last.producer_epoch) == (0, 1 if name else 0)
    assert (last.producer_id == first.producer_id) == (name is not None)


def test_ap_06_a_producer_that_was_fenced_does_not_start_over(world):
    """The new leader knows neither of its two producers. The older one must not take the name back."""
    old = Producer(world.cluster.root.uri, acks=1, name="importer")
    for value in (b"a", b"b"):
        old.send("t", pa.table({"value": [value]}))
        world.copy() if value == b"a" else None
    Producer(world.cluster.root.uri, acks=1, name="importer")
    world.fail_over()
    with pytest.raises(ProducerFencedException):
        old.send("t", pa.table({"value": [b"c"]}))
    assert world.values(2) == [b"a"]


def test_ap_02_retries_0_is_one_attempt(world):
    world.cluster.metadata.put([dataclasses.replace(world.registration, leader_epoch=1)], {"who": "test"})
    (answer,) = Producer(world.cluster.root.uri, retries=0).send("t", pa.table({"value": [b"a"]})).values()
    assert answer.error.name == "UnknownLeaderEpochException"
