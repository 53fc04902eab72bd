"""A client opens a broker's tables again for each new process, and only the log that the broker has registered."""

import os
import shutil

import pytest

from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import InvalidTopicException, KafkaStorageException, LeaderNotAvailableException
from lakelog.replication.protocol.partition_registration import NO_LEADER
from lakelog.replication.storage.cluster import Cluster, format_broker
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.schemas import LOG
from tests.clients.world import World
from tests.registrations import joined, register
from tests.storage.logs import P0, P1, TOPIC, fill, follow, lead


@pytest.fixture
def world(root):
    made = World(root)
    fill(made.logs[1], P0, 1, 1, 1)
    register(made.cluster.root, 1, made.roots[1])
    made.say(3)
    return made


def view(world):
    return TopicView(Cluster.open(world.uri))


def empty(world, broker):
    """Replaces a broker's disk: the root is formatted again at the same place."""
    shutil.rmtree(world.roots[broker].uri)
    format_broker(world.roots[broker], world.cluster.cluster_id, broker)
    world.logs[broker] = ReplicaLog.open(world.roots[broker].child(LOG.name))
    world.rows[broker] = {}


def lose_the_end(world, commits=2):
    """Removes the last commits of the leader's log, as a power cut does."""
    home = world.roots[1].child(LOG.name)
    for _ in range(commits):
        home.delete(commit_name(last_version(home)))
    world.logs[1] = ReplicaLog.open(home)


@pytest.mark.parametrize("what", ["emptied", "without its end", "without its end, and written to since"])
def test_li_04_a_log_other_than_the_registered_one_is_refused(world, what):
    """Until the broker registers it: an append could reuse offsets of records that other replicas have."""
    if what == "emptied":
        empty(world, 1)
    else:
        lose_the_end(world)
        fill(world.logs[1], P0, *[1] * (3 if "written" in what else 0))
    seen = view(world)
    for _ in range(2):
        with pytest.raises(LeaderNotAvailableException, match=r"broker 1: .* is not the log that it registered, or"):
            seen.log(1)
    register(world.cluster.root, 1, world.roots[1], epoch=2)
    with pytest.raises(LeaderNotAvailableException):
        seen.log(1)
    assert seen.log(1).refresh().partition(P0).log_end_offset == world.logs[1].refresh().partition(P0).log_end_offset


def test_li_04_a_log_that_has_grown_since_its_registration_is_used(world):
    fill(world.logs[1], P0, 1)
    assert view(world).log(1).refresh().partition(P0).log_end_offset == 4


def test_fe_03_li_04_a_root_that_was_made_again_is_read_by_clients_that_run(world):
    """The clients learn of the new process from the metadata, and open its tables again."""
    seen = view(world)
    seen.partitions(TOPIC)
    handles = seen.log(1), seen.log(2)
    world.say(3, broker=2)
    assert seen.replicas(2)[P0].log_end_offset == 0
    empty(world, 2)
    follow(world.logs[2], P0, P1, epoch=0)
    register(world.cluster.root, 2, world.roots[2], epoch=2)
    world.say(0, broker=2, broker_epoch=2, lag=7)
    world.change(isr_epochs=joined(world.partitions[P0]).isr_epochs | {2: 2})
    seen.partitions(TOPIC)
    assert (seen.replicas(2)[P0].broker_epoch, seen.replicas(2)[P0].lag) == (2, 7)
    assert seen.log(2).table_id == world.logs[2].table_id
    assert (seen.log(1) is handles[0], seen.log(2) is handles[1]) == (True, False)


def test_li_04_a_leader_that_is_elected_again_is_opened_anew(world):
    seen = view(world)
    seen.partitions(TOPIC)
    before = seen.log(1)
    register(world.cluster.root, 1, world.roots[1], epoch=2)
    assert seen.log(1) is before, "nobody has elected the new process yet"
    lead(world.logs[1], P0, epoch=1)
    world.change(leader_epoch=1, isr_epochs={1: 2})
    seen.partitions(TOPIC)
    assert seen.log(1) is not before


@pytest.mark.parametrize("topic", [5, b"t", ("t",)])
def test_a_topic_name_that_is_no_text_is_refused(world, topic):
    with pytest.raises(InvalidTopicException, match=f"is of type {type(topic).__name__}, it must be text"):
        view(world).partitions(topic)


def test_records_are_staged_at_the_leader_or_at_another_replica_while_its_log_cannot_be_opened(world):
    world.change(P1, leader=2)
    places = {broker: log.root for broker, log in world.logs.items()}

    def found():
        return view(world).log_roots(TOPIC)

    assert found() == {0: places[1], 1: places[2]}
    world.change(P0, leader=NO_LEADER)
    os.rename(world.roots[2].uri, world.roots[2].uri + "-away")
    assert found() == {0: places[1], 1: places[1]}
    os.rename(world.roots[1].uri, world.roots[1].uri + "-away")
    with pytest.raises(KafkaStorageException, match="no log of its brokers can be opened to stage records: "):
        found()


def test_records_are_staged_at_the_leaders_that_were_known_last_while_the_metadata_cannot_be_read(world):
    """The send then waits for the metadata until its deadline."""
    seen = view(world)
    known = seen.log_roots(TOPIC)
    os.rename(world.uri, world.uri + "-away")
    with pytest.raises(KafkaStorageException):
        seen.partitions(TOPIC)
    assert seen.log_roots(TOPIC) == known
