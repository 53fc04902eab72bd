"""When a follower tells of the high watermark that it has taken over from its leader."""

import dataclasses

import pytest

from lakelog.replication.protocol.fetch_state import FollowerState, PartitionFetchState
from lakelog.replication.protocol.rounds.broker_steps import PublishReplicas
from lakelog.replication.protocol.rounds.fetch_round import FollowHighWatermarks
from tests.server.test_replica_manager import World, carry_out
from tests.storage.logs import P0, P1, fill, lead


@pytest.fixture
def world(root):
    return World(root)


@pytest.fixture
def followed(world):
    """Broker 1 has two records of P0, which it leads, and nine of P1, which it follows, and has published its rows."""
    lead(world.log, P1, epoch=0)
    fill(world.log, P1, 5, 4)
    world.manager.apply()
    fill(world.log, P0, 2)
    world.fetchers.fetch_states = lambda: {P1: PartitionFetchState("flights-id", 1, 0, 9, FollowerState.FETCHING)}
    world.manager.publish("test")
    return world


def hear_of(world, high_watermark):
    world.manager.follow_high_watermarks(FollowHighWatermarks({P1: 9}, {P1: high_watermark}))


def publish_fetched(world):
    """The rows of a follower's round: the version of the table, and the published HW of P1."""
    carry_out(world.manager, PublishReplicas("fetched", may_wait=True))
    return world.table.version, world.table.replicas[P1].high_watermark


def test_hw_02_a_followers_hw_alone_waits_for_the_next_commit(followed):
    before = followed.table.version
    hear_of(followed, 4)
    assert publish_fetched(followed) == (before, 0)
    followed.manager.publish("kept up")
    assert (followed.table.version, followed.table.replicas[P1].high_watermark) == (before + 1, 4)
    assert publish_fetched(followed) == (before + 1, 4), "nothing is new"


def tell_error(world):
    state = PartitionFetchState("flights-id", 1, 0, 9, FollowerState.FETCHING, error="503")
    world.fetchers.fetch_states = lambda: {P1: state}


def tell_hw_of_the_led(world):
    hosted = world.manager._hosted
    hosted[P0] = dataclasses.replace(hosted[P0], high_watermark=1)


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda world: fill(world.log, P0, 1), id="the own log of a leader"),
        pytest.param(tell_error, id="an error"),
        pytest.param(tell_hw_of_the_led, id="the HW of a leader"),
    ],
)
def test_hw_02_a_row_that_another_broker_waits_for_is_published_at_once_with_the_hw(followed, happens):
    before = followed.table.version
    hear_of(followed, 4)
    assert publish_fetched(followed) == (before, 0)
    happens(followed)
    assert publish_fetched(followed) == (before + 1, 4)
