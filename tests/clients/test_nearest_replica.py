"""KIP-392: a consumer with a rack reads from an in-sync replica there, never past that replica's own HW."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.partition_reader import PartitionReader
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.storage.log.log_start import follow_log_starts
from tests.clients.source.reads import places, rows, stream_reader
from tests.clients.world import LONG, World
from tests.storage.logs import P0, P1, TOPIC, fill, replicate, truncate


@pytest.fixture
def near(root):
    """Five records of one partition: the leader's HW is 5, that of broker 2, in rack "eu", is 4."""
    world = World(root)
    fill(world.logs[1], P0, 2, 2, 1)
    replicate(world.logs[1], world.logs[2], P0)
    world.put_in_rack(2, "eu")
    world.say(5)
    world.say(4, broker=2)
    return world


def fetch(world, offset=0, rack="eu", **given):
    (fetched,) = Consumer(world.uri, client_rack=rack).fetch(TOPIC, {0: offset}, **given).values()
    assert fetched.error is None
    return fetched.records["offset"].to_pylist(), fetched.high_watermark


@pytest.mark.parametrize(
    ("rack", "expected"), [("eu", ([1, 2, 3], 4)), ("us", ([1, 2, 3, 4], 5)), ("", ([1, 2, 3, 4], 5))]
)
def test_kip_392_a_near_replica_is_read_up_to_its_own_hw(near, rack, expected):
    assert fetch(near, 1, rack) == expected


def test_kip_392_a_leader_in_the_rack_is_preferred_to_followers_there(near):
    near.put_in_rack(1, "eu")
    assert fetch(near) == ([0, 1, 2, 3, 4], 5)


def test_kip_392_the_leader_is_read_at_an_offset_above_the_hw_of_the_near_replica(near):
    near.say(2, broker=2)
    assert fetch(near, 3) == ([3, 4], 5)


def test_kip_392_the_leader_is_read_below_the_log_start_of_the_near_replica(near):
    follow_log_starts(near.logs[2], {P0: (0, 2)}, "test")
    near.say(4, broker=2)
    assert fetch(near, 2) == ([2, 3], 4)
    assert fetch(near, 1) == ([1, 2, 3, 4], 5)


def test_kip_392_a_query_reads_the_leader_below_the_log_start_of_the_near_replica(near):
    near.say(0, P1)
    reader = stream_reader(near, startingOffsets="earliest", **{"client.rack": "eu"})
    start = reader.initialOffset()
    follow_log_starts(near.logs[2], {P0: (0, 2)}, "test")
    near.say(4, broker=2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["offsets"] == {TOPIC: {"0": 5, "1": 0}}
    assert places(rows(reader, reader.partitions(start, end))) == [(0, n) for n in range(5)]
    unknown = {**start, "topic_ids": {}, "offsets": {}}
    assert reader.latestOffset(unknown, ReadAllAvailable())["offsets"] == {TOPIC: {"0": 0, "1": 0}}


@pytest.fixture
def two_near(near, root):
    """Broker 3 in rack "eu" has all five records, too, so its HW may be up to 5."""
    near.add_broker(3, root)
    replicate(near.logs[1], near.logs[3], P0)
    near.put_in_rack(3, "eu")
    near.cluster.refresh_brokers()
    return near


@pytest.mark.parametrize(
    ("second", "third", "offset", "expected"),
    [(4, 3, 1, ([1, 2, 3], 4)), (3, 4, 1, ([1, 2, 3], 4)), (2, 3, 3, ([], 3)), (3, 2, 3, ([], 3)), (2, 2, 3, None)],
)
def test_kip_392_of_several_near_replicas_the_most_caught_up_one_that_has_the_offset_is_read(
    two_near, second, third, offset, expected
):
    two_near.say(second, broker=2)
    two_near.say(third, broker=3)
    assert fetch(two_near, offset, max_wait_ms=0) == (expected or ([3, 4], 5)), "None: the leader"


def test_kip_392_of_near_replicas_with_the_same_hw_the_longer_one_is_read(two_near):
    truncate(two_near.logs[2], {P0: 4})
    two_near.say(4, broker=2)
    two_near.say(4, broker=3)
    reader = PartitionReader(TopicView(two_near.cluster), "eu")
    assert [near.row.broker_id for near in reader.in_rack(two_near.partitions[P0])] == [3, 2]


def test_kip_392_another_replica_of_the_rack_is_read_before_the_leader(two_near):
    """After one that no longer has the offset, one that is not in sync, and one with a file that cannot be read."""
    follow_log_starts(two_near.logs[3], {P0: (0, 2)}, "test")
    two_near.say(5, broker=3)
    assert fetch(two_near, 1) == ([1, 2, 3], 4)
    assert fetch(two_near, 2) == ([2, 3, 4], 5)
    reader = PartitionReader(TopicView(two_near.cluster), "eu")
    assert [reader.nearest(two_near.partitions[P0], offset).row.broker_id for offset in (1, 2)] == [2, 3]
    two_near.say(5, broker=3, state="Truncating")
    assert fetch(two_near, 2) == ([2, 3], 4)
    two_near.say(5, broker=3)
    with Consumer(two_near.uri, client_rack="eu") as consumer:
        assert consumer.fetch(TOPIC, {0: 2})[0].high_watermark == 5
        for broker, expected in ((3, 4), (2, 5)):
            for name in two_near.logs[broker].refresh().segments:
                two_near.logs[broker].root.delete(name)
            fetched = consumer.fetch(TOPIC, {0: 2})[0]
            assert (fetched.error, fetched.high_watermark) == (None, expected)


def test_kip_392_a_near_replica_whose_root_cannot_be_read_is_passed_over(two_near):
    two_near.say(5, broker=3)
    assert fetch(two_near) == ([0, 1, 2, 3, 4], 5)
    two_near.roots[3].child("replicas").delete_folder()
    assert fetch(two_near) == ([0, 1, 2, 3], 4)


def test_kip_392_no_row_of_the_partition_is_no_near_replica(near, root):
    near.add_broker(3, root)
    near.put_in_rack(3, "eu")
    assert fetch(near) == ([0, 1, 2, 3], 4)


def test_do_02_a_waiting_fetch_answers_when_the_hw_of_the_near_replica_rises(near, while_waiting):
    while_waiting(lambda: near.say(5), lambda: near.say(5, broker=2))
    assert fetch(near, 4, max_wait_ms=LONG) == ([4], 5)


@pytest.mark.parametrize("changes", [{"state": "Truncating"}, {"leader_epoch": 7}, {"chain": "another"}])
def test_kip_392_a_replica_that_is_not_in_sync_is_not_read(near, changes):
    near.say(4, broker=2, **changes)
    assert fetch(near) == ([0, 1, 2, 3, 4], 5)


def test_kip_392_a_replica_that_has_left_the_isr_or_lost_its_end_is_not_read(near):
    truncate(near.logs[2], {P0: 2})
    assert fetch(near) == ([0, 1, 2, 3, 4], 5)
    near.change(P0, isr=(1,))
    assert fetch(near) == ([0, 1, 2, 3, 4], 5)


def test_kip_392_a_waiting_fetch_goes_back_to_the_leader_when_the_replica_leaves_the_isr(near, while_waiting):
    while_waiting(lambda: near.change(P0, isr=(1,)))
    assert fetch(near, 4, max_wait_ms=LONG) == ([4], 5)


def test_kip_392_a_waiting_fetch_goes_back_to_the_leader_when_the_replica_stops_following(near, while_waiting):
    while_waiting(lambda: near.say(4, broker=2, state="Truncating"))
    assert fetch(near, 4, max_wait_ms=LONG) == ([4], 5)


def test_kip_392_the_leader_is_read_if_a_file_of_the_near_replica_cannot_be_read(near):
    """Kafka: a consumer goes back to the leader after an error of its preferred replica."""
    with Consumer(near.uri, client_rack="eu") as consumer:
        assert consumer.fetch(TOPIC, {0: 0})[0].high_watermark == 4
        for name in near.logs[2].refresh().segments:
            near.logs[2].root.delete(name)
        fetched = consumer.fetch(TOPIC, {0: 0})[0]
        assert (fetched.error, fetched.high_watermark) == (None, 5)
        assert fetched.records["offset"].to_pylist() == [0, 1, 2, 3, 4]
        for name in near.logs[1].refresh().segments:
            near.logs[1].root.delete(name)
        assert consumer.fetch(TOPIC, {0: 0})[0].error.name == "CorruptRecordException"


def test_kip_392_a_member_of_a_group_reads_the_near_replica(near):
    near.say(0, P1)
    with Consumer(near.uri, "g", client_rack="eu", auto_offset_reset="earliest") as member:
        member.subscribe([TOPIC])
        assert member.poll(60)["offset"].to_pylist() == [0, 1, 2, 3]
