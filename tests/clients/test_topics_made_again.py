"""A topic that is deleted and made again has other records: no position, answer or offset of the one is used for the
other. KIP-516."""

import pytest

from lakelog.replication.clients import positions
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.offset_lookup import LATEST, offset_for
from lakelog.replication.clients.partition_reader import ask_leaders
from lakelog.replication.clients.record_deletion import delete_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import UnknownTopicIdException, UnknownTopicOrPartitionException
from lakelog.replication.storage.cluster import Cluster
from tests.clients.world import LONG, RARELY, filled_world
from tests.storage.logs import P1, TOPIC, TOPIC_ID, lead, offsets


@pytest.fixture
def world(root):
    return filled_world(root)


@pytest.fixture
def member(world):
    with Consumer(world.uri, "g", auto_offset_reset="earliest", **RARELY) as consumer:
        consumer.subscribe([TOPIC])
        yield consumer


def places(*tables):
    rows = [row for table in tables for row in table.select(["topic_id", "partition", "offset"]).to_pylist()]
    return [(row["topic_id"], row["partition"], row["offset"]) for row in rows]


def test_fe_02_td_03_a_subscribed_consumer_reads_each_record_of_both_topics_once_and_in_order(world, member):
    """The new topic reaches further than the position in the old one."""
    first = member.poll(5)
    again = world.make_again(5, 1)
    later = [member.poll(5), member.poll(0)]
    assert places(first) == [(TOPIC_ID, 0, 0), (TOPIC_ID, 0, 1), (TOPIC_ID, 0, 2), (TOPIC_ID, 1, 0), (TOPIC_ID, 1, 1)]
    assert places(*later) == [(again[0].topic_id, 0, offset) for offset in range(5)] + [(again[1].topic_id, 1, 0)]
    member.commit()
    assert member.committed(TOPIC) == {0: 5, 1: 1}


def test_fe_02_a_member_commits_no_offset_of_the_old_topic_for_the_new_one(world, member):
    member.poll(5)
    world.make_again(5, 5)
    with pytest.raises(UnknownTopicIdException, match=f"{TOPIC}-0: the topic with id {TOPIC_ID} was deleted, and"):
        member.commit({TOPIC: {0: 3}})
    member.commit()
    assert member.committed(TOPIC) == {}


def test_fe_02_a_member_reads_all_of_a_topic_that_is_made_again_before_its_start_is_found(world, member, monkeypatch):
    """The topic is made again between the assignment and the look: `latest` of the old one is none of the new one."""
    poll = positions.TopicWatch

    def too_late(*given):
        monkeypatch.setattr(positions, "TopicWatch", poll)
        world.make_again(5, 5)
        return poll(*given)

    monkeypatch.setattr(positions, "TopicWatch", too_late)
    assert len(places(member.poll(5), member.poll(0), member.poll(0))) == 10


def test_fe_02_a_waiting_fetch_has_an_error_when_its_topic_is_made_again(world, while_waiting):
    while_waiting(lambda: world.make_again(5, 5))
    (fetched,) = world.consumer().fetch(TOPIC, {0: 3}, max_wait_ms=LONG).values()
    assert (type(fetched.error), fetched.records.num_rows) == (UnknownTopicIdException, 0)


def test_fe_02_a_fetch_with_the_id_of_an_older_topic_is_refused(world):
    consumer = world.consumer()
    topic_id = consumer.fetch(TOPIC, {0: 0})[0].topic_id
    again = world.make_again(5, 5)
    (refused,) = consumer.fetch(TOPIC, {0: 3}, topic_id=topic_id).values()
    assert (topic_id, type(refused.error), refused.topic_id) == (TOPIC_ID, UnknownTopicIdException, "")
    assert not refused.error.retriable
    assert consumer.fetch(TOPIC, {0: 3})[0].topic_id == again[0].topic_id


def test_fe_02_a_fetch_from_a_near_replica_with_the_id_of_an_older_topic_is_refused(world):
    world.put_in_rack(2, "west")
    with Consumer(world.uri, client_rack="west") as consumer:
        world.make_again(5, 5)
        (refused,) = consumer.fetch(TOPIC, {0: 3}, topic_id=TOPIC_ID).values()
    assert isinstance(refused.error, UnknownTopicIdException)


def test_fe_02_offsets_of_an_older_topic_are_not_committed_for_a_later_one(world):
    consumer = world.consumer("g")
    consumer.fetch(TOPIC, {0: 0})
    world.make_again(5, 5)
    with pytest.raises(UnknownTopicIdException):
        consumer.commit({TOPIC: {0: 3}})
    assert consumer.committed(TOPIC) == {}
    consumer.fetch(TOPIC, {0: 0})
    consumer.commit({TOPIC: {0: 5}})
    assert consumer.committed(TOPIC) == {0: 5}


def test_dr_01_a_deletion_that_waits_for_a_leader_deletes_nothing_of_the_new_topic(world, while_waiting):
    world.change(leader=-1)
    while_waiting(lambda: world.make_again(5, 5))
    (outcome,) = delete_records(TopicView(Cluster.open(world.uri)), TOPIC, {0: 2}, LONG).values()
    assert isinstance(outcome, UnknownTopicIdException)
    (p0, _) = world.partitions
    assert offsets(world.logs[1], p0) == [0, 1, 2, 3, 4]


def test_dr_02_a_deletion_is_not_confirmed_by_replicas_of_the_new_topic(world, while_waiting):
    world.say(0, broker=2)
    while_waiting(lambda: world.make_again(5))
    outcomes = delete_records(TopicView(Cluster.open(world.uri)), TOPIC, {0: 2, 1: 1}, LONG)
    assert [type(outcome) for outcome in outcomes.values()] == [
        UnknownTopicIdException, UnknownTopicOrPartitionException,
    ]  # fmt: skip


def test_the_settings_of_a_deleted_topic_are_an_error_with_its_name(world):
    view = TopicView(Cluster.open(world.uri))
    view.partitions(TOPIC)
    world.cluster.topics.change([], [TOPIC], {"who": "test"})
    view.cluster.topics.refresh()
    with pytest.raises(UnknownTopicOrPartitionException, match=f"no topic {TOPIC} any more"):
        view.config(TOPIC)


def test_fe_02_all_offsets_of_an_answer_are_of_one_topic(world, while_waiting):
    """The leader of one partition is asked again, and the topic is made again meanwhile."""
    lead(world.logs[1], P1, epoch=1)
    world.change(P1, leader_epoch=1)
    while_waiting(lambda: world.make_again(5, 4))
    asked = ask_leaders(
        TopicView(Cluster.open(world.uri)), TOPIC, [0, 1], lambda led: offset_for(led, LATEST).offset, float("inf")
    )  # fmt: skip
    assert asked == {0: 5, 1: 4}
