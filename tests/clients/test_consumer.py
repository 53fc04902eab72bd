"""A consumer on real tables without brokers: the tests write the logs and the replica rows."""

import dataclasses
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakelog.replication.clients import partition_reader
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.clients.topic_view import open_view
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    InvalidGroupIdException,
    InvalidTopicException,
    KafkaStorageException,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.delayed_operation import check_log_leads
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.replica_log import LogChange
from lakelog.replication.storage.log.segment import write_segment
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from tests.clients.world import LONG, World
from tests.controllers import controller_of
from tests.storage.logs import P0, P1, TOPIC, fill, follow, header, lead, log_rows, truncate

NO_SPARK = SparkSession.__new__(SparkSession)  # for reads that are refused before they need one


@pytest.fixture
def world(root):
    return World(root)


def offsets(fetched):
    assert fetched.error is None
    return fetched.records["offset"].to_pylist()


@pytest.mark.parametrize(
    ("high_watermark", "start", "expected"),
    [(5, 0, [0, 1, 2, 3, 4]), (3, 0, [0, 1, 2]), (4, 0, [0, 1, 2, 3]), (4, 1, [1, 2, 3]), (5, 4, [4])],
)
def test_fe_01_a_fetch_returns_the_records_below_the_hw(world, high_watermark, start, expected):
    """Also if the HW or the offset is within a batch."""
    fill(world.logs[1], P0, 3, 2)
    world.say(high_watermark)
    (fetched,) = world.consumer().fetch(TOPIC, {0: start}).values()
    assert offsets(fetched) == expected
    assert fetched.records["value"].to_pylist() == [(b"0", b"1", b"2", b"0", b"1")[offset] for offset in expected]
    assert fetched.records.schema == LOG.arrow
    assert (fetched.high_watermark, fetched.log_start_offset) == (high_watermark, 0)


def test_fe_01_a_fetch_from_a_file_of_several_partitions_returns_only_the_requested_one(world):
    fill(world.logs[1], P0, 3)
    fill(world.logs[1], P1, 2)
    world.say(3)
    world.say(1, P1)
    fetched = world.consumer().fetch(TOPIC, {1: 0, 0: 1})
    assert {partition: offsets(found) for partition, found in fetched.items()} == {0: [1, 2], 1: [0]}


@pytest.mark.parametrize("max_wait_ms", [0, -1])
def test_fe_02_a_fetch_without_time_to_wait_answers_at_once(world, while_waiting, max_wait_ms):
    while_waiting()
    world.say(0)
    (fetched,) = world.consumer().fetch(TOPIC, {0: 0}, max_wait_ms=max_wait_ms).values()
    assert (offsets(fetched), fetched.high_watermark) == ([], 0)


def test_fe_02_a_fetch_without_enough_bytes_answers_at_its_deadline(world):
    fill(world.logs[1], P0, 3)
    world.say(3)
    (fetched,) = world.consumer().fetch(TOPIC, {0: 1}, min_bytes=1000, max_wait_ms=1).values()
    assert offsets(fetched) == [1, 2], "what there is then"


def test_do_02_a_waiting_fetch_answers_when_the_hw_rises(world, while_waiting):
    fill(world.logs[1], P0, 3)
    world.say(0)
    left = while_waiting(lambda: None, lambda: world.say(2))
    (fetched,) = world.consumer().fetch(TOPIC, {0: 0}, max_wait_ms=LONG).values()
    assert offsets(fetched) == [0, 1]
    assert next(left, None) is None


def test_fe_02_a_fetch_waits_for_enough_bytes(world, while_waiting):
    """Key and value of a record are two bytes."""
    fill(world.logs[1], P0, 1, 1, 1)
    world.say(1)
    while_waiting(lambda: world.say(2), lambda: world.say(3))
    (fetched,) = world.consumer().fetch(TOPIC, {0: 0}, min_bytes=6, max_wait_ms=LONG).values()
    assert offsets(fetched) == [0, 1, 2]


def test_do_02_a_waiting_fetch_answers_when_the_leader_changes(world, while_waiting):
    world.say(0)
    while_waiting(lambda: world.change(leader=2, leader_epoch=1))
    (fetched,) = world.consumer().fetch(TOPIC, {0: 0}, max_wait_ms=LONG).values()
    assert fetched.error is not None
    assert fetched.error.name == "UnknownLeaderEpochException"
    assert fetched.error.retriable


def test_fe_02_a_fetch_above_the_hw_waits_without_an_error(world, while_waiting):
    """A new leader's HW may be behind its predecessor's."""
    fill(world.logs[1], P0, 5)
    world.say(1)
    (fetched,) = world.consumer().fetch(TOPIC, {0: 3}, max_wait_ms=0).values()
    assert (offsets(fetched), fetched.high_watermark) == ([], 1)
    while_waiting(lambda: world.say(3), lambda: world.say(5))
    (fetched,) = world.consumer().fetch(TOPIC, {0: 3}, max_wait_ms=LONG).values()
    assert offsets(fetched) == [3, 4]


def deposed(world):
    """The row still says leader, but the log follows: it may have been truncated."""
    follow(world.logs[1], P0, epoch=1)


ERRORS = {
    # case: (event after broker 1 has published HW 3 of 5 records, offset) -> error
    "no leader": (lambda w: w.change(leader=-1), 0, "LeaderNotAvailableException"),
    "a leader that is slower": (lambda w: w.change(leader_epoch=1), 0, "UnknownLeaderEpochException"),
    "a leader that says nothing": (lambda w: w.change(leader=2), 0, "UnknownLeaderEpochException"),
    "a leader that is ahead": (lambda w: w.say(3, leader_epoch=1), 0, "FencedLeaderEpochException"),
    "it follows": (lambda w: w.say(3, role=FOLLOWER_ROLE), 0, "NotLeaderOrFollowerException"),
    "deposed since": (deposed, 0, "NotLeaderOrFollowerException"),
    "leads anew since": (lambda w: lead(w.logs[1], P0, epoch=1), 0, "NotLeaderOrFollowerException"),
    "it has lost its end": (lambda w: truncate(w.logs[1], {P0: 2}), 0, "LeaderNotAvailableException"),
    "above the LEO": (lambda _: None, 6, "OffsetOutOfRangeException"),
    "below the log start": (lambda _: None, -1, "OffsetOutOfRangeException"),
    "a broker that is not registered": (lambda w: w.change(leader=9), 0, "BrokerNotAvailableException"),
    "an emptied root": (lambda w: shutil.rmtree(w.roots[1].path("replicas")), 0, "InconsistentClusterIdException"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_fe_02_an_error_of_a_partition_answers_a_fetch_at_once(world, while_waiting, case):
    happens, offset, name = ERRORS[case]
    while_waiting()
    fill(world.logs[1], P0, 5)
    world.say(3)
    happens(world)
    (fetched,) = world.consumer().fetch(TOPIC, {0: offset}, min_bytes=LONG, max_wait_ms=LONG).values()
    assert fetched.error is not None
    assert fetched.error.name == name
    assert (fetched.records.num_rows, fetched.high_watermark, fetched.log_start_offset) == (0, -1, -1)


def test_do_02_an_offline_root_fails_only_its_own_partitions_of_a_fetch(world, while_waiting, monkeypatch):
    while_waiting()
    world.change(P1, leader=2, leader_epoch=1)
    lead(world.logs[2], P1, epoch=1)
    fill(world.logs[2], P1, 1, epoch=1)
    world.say(1, P1, broker=2)
    refresh = ReplicaTable.refresh

    def refuse(self):
        if "broker-1" in self.root.uri:
            raise KafkaStorageException("broker 1: cannot be read")
        return refresh(self)

    monkeypatch.setattr(ReplicaTable, "refresh", refuse)
    fetched = world.consumer().fetch(TOPIC, {0: 0, 1: 0}, min_bytes=LONG, max_wait_ms=LONG)
    assert (fetched[0].error.name, fetched[0].error.retriable) == ("KafkaStorageException", True)
    assert offsets(fetched[1]) == [0]


def test_fe_02_a_fetch_returns_records_of_partitions_beside_one_with_an_error(world, while_waiting):
    while_waiting()
    fill(world.logs[1], P0, 2)
    world.say(2)
    world.say(0, P1)
    fetched = world.consumer().fetch(TOPIC, {0: 0, 1: 5, 7: 0}, min_bytes=LONG, max_wait_ms=LONG)
    assert offsets(fetched[0]) == [0, 1]
    assert fetched[1].error.name == "OffsetOutOfRangeException"
    assert fetched[7].error.name == "UnknownTopicOrPartitionException"


def test_fe_02_a_fetch_of_an_unknown_topic_or_of_no_partition_answers_at_once(world, while_waiting):
    while_waiting()
    (fetched,) = world.consumer().fetch("nobody", {0: 0}, max_wait_ms=LONG).values()
    assert fetched.error.name == "UnknownTopicOrPartitionException"
    assert world.consumer().fetch(TOPIC, {}, max_wait_ms=LONG) == {}


def test_fe_02_a_waiting_fetch_of_a_topic_that_is_deleted_has_an_error(world, while_waiting):
    world.say(0)
    while_waiting(lambda: world.cluster.metadata.update({}, lambda _: []))
    (fetched,) = world.consumer().fetch(TOPIC, {0: 0}, max_wait_ms=LONG).values()
    assert fetched.error.name == "UnknownTopicOrPartitionException"


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [(1, ([0, 1], [])), (4, ([0, 1], [])), (7, ([0, 1], [0])), (8, ([0, 1, 2, 3], [])), (10, ([0, 1, 2, 3], [0]))],
)
def test_fe_02_the_first_batch_of_a_fetch_may_exceed_max_bytes(world, max_bytes, expected):
    """Partition 0 has two batches of four bytes, partition 1 one of two."""
    fill(world.logs[1], P0, 2, 2)
    fill(world.logs[1], P1, 1)
    world.say(4)
    world.say(1, P1)
    fetched = world.consumer().fetch(TOPIC, {0: 0, 1: 0}, max_bytes=max_bytes)
    assert (offsets(fetched[0]), offsets(fetched[1])) == expected


def test_fe_02_batches_beyond_max_bytes_are_returned_by_the_next_fetch(world):
    log = world.logs[1]
    first = header(P0, 0, 1)
    segment = write_segment(log.root, 1, log_rows(P0, 0, 4), [first, header(P0, 2, 3, previous=first.chain)])
    log.transact({"who": "test"}, lambda _: LogChange(adds=(segment,)))
    world.say(4)
    (fetched,) = world.consumer().fetch(TOPIC, {0: 0}, max_bytes=1).values()
    assert offsets(fetched) == [0, 1]


def test_fe_02_a_fetch_returns_records_that_have_no_bytes(world, while_waiting):
    while_waiting()
    Producer(world.uri, acks=1).send(TOPIC, pa.table({"value": pa.array([None], pa.binary()), "partition": [0]}))
    world.say(1)
    (fetched,) = world.consumer().fetch(TOPIC, {0: 0}, max_wait_ms=LONG).values()
    assert offsets(fetched) == [0]


def test_fe_01_a_missing_file_is_an_error_of_its_partition(world):
    fill(world.logs[1], P0, 1)
    fill(world.logs[1], P1, 1)
    world.say(1)
    world.say(1, P1)
    consumer = world.consumer()
    consumer.fetch(TOPIC, {0: 0})
    (gone,) = {b.segment for b in world.logs[1].refresh().partition(P0).batches}
    world.logs[1].root.delete(gone)
    fetched = consumer.fetch(TOPIC, {0: 0, 1: 0})
    assert fetched[0].error.name == "CorruptRecordException"
    assert gone in str(fetched[0].error)
    assert offsets(fetched[1]) == [0]


@pytest.mark.parametrize("length", [None, 10], ids=["gone", "cut short"])
def test_fe_01_read_committed_names_a_file_that_was_deleted_or_shortened_by_hand(world, length):
    fill(world.logs[1], P0, 1)
    world.say(1)
    world.say(0, P1)
    (name,) = {b.segment for b in world.logs[1].refresh().partition(P0).batches}
    file = Path(world.logs[1].root.path(name))
    content = file.read_bytes()
    file.unlink()
    if length is not None:
        file.write_bytes(content[:length])
    with pytest.raises(CorruptRecordException, match=name):
        read_committed(NO_SPARK, world.uri, TOPIC)


def test_fe_01_read_committed_returns_all_records_while_another_thread_replays_a_compaction(world, monkeypatch, spark):
    fill(world.logs[1], P0, 1, 1, 1)
    world.say(3)
    world.say(0, P1)

    def compacted(partition_log, row, name):
        compact(world.logs[1], 1 << 25, 2, 1 << 28, "test")
        open_view(world.uri, Config()).log(1).refresh()
        check_log_leads(partition_log, row, name)

    monkeypatch.setattr(partition_reader, "check_log_leads", compacted)
    read = read_committed(spark, world.uri, TOPIC)
    assert [row.offset for row in read.orderBy("offset").collect()] == [0, 1, 2]
    assert len(world.logs[1].refresh().segments) == 1


def test_fe_01_read_committed_refuses_a_log_that_no_longer_leads(world):
    fill(world.logs[1], P0, 5)
    world.say(3)
    world.say(0, P1)
    deposed(world)
    with pytest.raises(NotLeaderOrFollowerException, match=f"{TOPIC}-0: leader epoch 0 is over"):
        read_committed(NO_SPARK, world.uri, TOPIC)


def test_fe_01_tr_08_read_committed_shows_nothing_by_the_row_of_a_leader_that_has_lost_the_end_of_its_log(world):
    """A producer appended before the broker was back: its records are below the HW of the lost ones."""
    fill(world.logs[1], P0, 5)
    world.say(5)
    world.say(0, P1)
    truncate(world.logs[1], {P0: 0})
    fill(world.logs[1], P0, 5, producer_id=8)
    with pytest.raises(LeaderNotAvailableException, match=f"{TOPIC}-0: the log of broker 1 has lost its end"):
        read_committed(NO_SPARK, world.uri, TOPIC)


@pytest.mark.parametrize(
    ("starting", "ending"), [({0: 5}, "latest"), ("latest", "latest"), ("earliest", "latest"), ({0: 1}, {0: 4})]
)
def test_kip_207_read_committed_waits_for_a_leader_that_does_not_know_yet_how_much_is_committed(
    world, while_waiting, starting, ending
):
    """Asks partition 1 for offsets that it never had, so that Spark does not read."""
    fill(world.logs[1], P0, 5)
    lead(world.logs[1], P0, epoch=1)
    world.change(leader_epoch=1)
    world.say(3)
    world.say(0, P1)
    offsets = [{0: given, **({} if isinstance(given, str) else given), 1: 7} for given in (starting, ending)]
    while_waiting(lambda: world.say(4), lambda: world.say(5))
    with pytest.raises(OffsetOutOfRangeException, match=f"{TOPIC}-1: offset 7 is out of range"):
        read_committed(NO_SPARK, world.uri, TOPIC, *offsets)
    while_waiting(*[lambda: None] * 10_000)
    world.say(3)
    with pytest.raises(OffsetNotAvailableException, match=f"{TOPIC}-0: the high watermark 3 is below 5"):
        read_committed(NO_SPARK, world.uri, TOPIC, *offsets, Config.from_properties({"request.timeout.ms": 1}))


def test_ep_03_epoch_end_returns_the_end_in_the_leaders_log(world):
    fill(world.logs[1], P0, 3)
    lead(world.logs[1], P0, epoch=2)
    fill(world.logs[1], P0, 2, epoch=2)
    world.change(leader_epoch=2)
    world.say(0)
    ends = world.consumer().epoch_end(TOPIC, 0, [0, 1, 2, 3])
    assert ends == {0: (0, 3), 1: (0, 3), 2: (2, 5), 3: (-1, -1)}
    assert world.consumer().epoch_end(TOPIC, 0, [2], broker_id=1)[2].end_offset == 5


@pytest.mark.parametrize(
    ("happens", "arguments", "error"),
    [
        (lambda _: None, {"broker_id": 2}, NotLeaderOrFollowerException),
        (deposed, {}, NotLeaderOrFollowerException),
        (lambda w: w.change(leader=-1), {}, LeaderNotAvailableException),
        (lambda _: None, {"partition": 7}, UnknownTopicOrPartitionException),
    ],
    ids=["a follower", "deposed since", "no leader", "unknown"],
)
def test_ep_03_epoch_end_of_a_broker_that_does_not_lead_is_refused(world, happens, arguments, error):
    world.say(0)
    happens(world)
    with pytest.raises(error, match=f"{TOPIC}-"):
        world.consumer().epoch_end(**{"topic": TOPIC, "partition": 0, "epochs": [0], **arguments})


def test_ap_04_committed_returns_the_offsets_that_the_group_committed_last(world):
    consumer = world.consumer("g")
    assert consumer.committed(TOPIC) == {}
    consumer.commit({TOPIC: {0: 3}})
    consumer.commit({TOPIC: {1: 0}})
    assert world.consumer("g").committed(TOPIC) == {0: 3, 1: 0}
    world.consumer("g").commit({TOPIC: {0: 2}})
    assert consumer.committed(TOPIC) == {0: 2, 1: 0}, "an offset may go back"
    assert world.consumer("another").committed(TOPIC) == {}


def test_ap_04_a_topic_that_is_made_again_has_no_committed_offsets(world):
    world.consumer("g").commit({TOPIC: {0: 3}})
    again = [dataclasses.replace(r, topic_id="again") for r in world.partitions.values()]
    world.cluster.topics.update({}, lambda rows: [{**row, "topic_id": "again"} for row in rows])
    world.cluster.metadata.put(again, {"who": "test"})
    assert world.consumer("g").committed(TOPIC) == {}


@pytest.mark.parametrize("group", [None, ""])
def test_ap_04_commit_without_a_group_is_refused(world, group):
    consumer = world.consumer(group)
    for refused in (lambda: consumer.commit({TOPIC: {0: 1}}), lambda: consumer.committed(TOPIC)):
        with pytest.raises(InvalidGroupIdException, match=f"group is {group!r}: .* under the name of a group"):
            refused()


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ({TOPIC: {0: 1, 7: 1}}, UnknownTopicOrPartitionException, f"{TOPIC}-7"),
        ({TOPIC: {0: 1}, "nobody": {0: 1}}, UnknownTopicOrPartitionException, "no topic nobody"),
        ({TOPIC: {0: 1, 1: -1}}, OffsetOutOfRangeException, f"{TOPIC}-1: offset -1 cannot .* from 0 to"),
        ({TOPIC: {0: 1, 1: 2**63}}, OffsetOutOfRangeException, f"{TOPIC}-1: offset {2**63} cannot .* from 0 to"),
        ({TOPIC: {0: 1, 1: True}}, OffsetOutOfRangeException, f"{TOPIC}-1: offset True cannot .* whole number"),
        ({TOPIC: {0: 1, 1: 1.5}}, OffsetOutOfRangeException, f"{TOPIC}-1: offset 1.5 cannot .* whole number"),
    ],
)
def test_ap_04_a_refused_commit_stores_no_offset(world, offsets, error, message):
    consumer = world.consumer("g")
    with pytest.raises(error, match=message):
        consumer.commit(offsets)
    assert consumer.committed(TOPIC) == {}


def test_ap_02_internal_topics_are_refused(world):
    """Also if a topic of that name exists: the name is refused before the tables are read."""
    message = "topic __x is internal, which is not for .* begin with __ are reserved"
    for refused in (
        lambda: Producer(world.uri).send("__x", pa.table({"value": [b"a"]})),
        lambda: AdminClient(world.uri).create_topic("__x", 1, 1),
    ):
        with controller_of(world.uri), pytest.raises(InvalidTopicException, match=message):
            refused()
    with controller_of(world.uri):
        AdminClient(world.uri).create_topic("_x__", 1, 1)
