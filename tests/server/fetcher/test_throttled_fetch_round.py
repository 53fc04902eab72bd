"""Micro-batches under a quota: which partitions wait, for how long, and that no record is lost."""

import pytest

from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.server.replication_quotas import ReplicationQuotas
from tests.clock import Clock
from tests.server.fetcher.test_fetch_runner import World
from tests.server.quota_cache import QuotaCache
from tests.storage.logs import P0, P1, fill, leo, offsets

BATCH = 4  # bytes of two records: a key and a value of one byte each


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def throttled(root, clock):
    """A follower that may fetch two batches of partition 0 a second."""

    def make(**cache):
        told = QuotaCache(**{"replicas": {"follower": "0:2"}, "rates": {2: {"follower": 2 * BATCH}}, **cache})
        world = World(root, quotas=ReplicationQuotas(2, told, clock), clock=clock)
        world.cache = told
        return world

    return make


def produce(world, partition, *counts):
    """Batches at the leader, all of them committed there."""
    fill(world.leader, partition, *counts)
    world.publish(high_watermark=leo(world.leader, partition))


def fetch_all_that_is_allowed(world):
    """Runs rounds until none is due at once."""
    while world.fetch():
        pass
    return leo(world.follower, P0), leo(world.follower, P1)


def test_th_01_a_partition_above_the_quota_is_left_out_and_others_are_fetched(throttled):
    world = throttled()
    produce(world, P0, *[2] * 5)
    world.fetch()
    assert leo(world.follower, P0) == 4, "as much as the quota allows, not the whole snapshot"
    assert fetch_all_that_is_allowed(world) == (6, 0), "the first batch of a round is always taken"
    produce(world, P1, *[2] * 5)
    assert fetch_all_that_is_allowed(world) == (6, 10)


def test_th_01_a_replica_that_is_held_back_has_not_failed(throttled, clock):
    world = throttled()
    produce(world, P0, *[2] * 5)
    fetch_all_that_is_allowed(world)
    state = world.states.all().get(P0)
    assert (state.shown_state, state.error, state.fetch_offset) == (FollowerState.DELAYED, None, 6)
    assert world.states.all().get(P1).shown_state == FollowerState.FETCHING
    assert not world.states.has_due()
    clock.now += 1.5  # 3 batches, 2 a second
    assert world.states.has_due(), "which wakes its query"
    world.fetch()
    assert world.states.all().get(P0).shown_state == FollowerState.FETCHING


def test_th_01_nothing_is_lost_of_what_the_stream_brings_meanwhile(throttled, clock):
    world = throttled()
    produce(world, P0, *[2] * 3)
    fetch_all_that_is_allowed(world)
    produce(world, P0, *[2] * 3)
    fetch_all_that_is_allowed(world)
    assert leo(world.follower) == 6
    for _ in range(10):
        clock.now += 1.5
        fetch_all_that_is_allowed(world)
    assert offsets(world.follower) == list(range(12))
    assert not world.states.all().get(P0).lagging, "it follows the tail again"


def test_th_01_a_member_of_the_isr_is_never_left_out(throttled):
    world = throttled(isr=(1, 2))
    produce(world, P0, *[2] * 20)
    assert fetch_all_that_is_allowed(world) == (40, 0)


def test_th_02_the_leaders_rate_is_shared_by_those_that_are_throttled(throttled):
    """The leader allows four batches a second, to two followers that are out of sync."""
    world = throttled(replicas={"leader": "0:1"}, rates={1: {"leader": 4 * BATCH}}, brokers=(1, 2, 3))
    produce(world, P0, *[2] * 9)
    world.fetch()
    assert leo(world.follower) == 4


def test_th_02_a_rate_that_is_raised_holds_from_the_next_round_on(throttled, clock):
    world = throttled()
    produce(world, P0, *[2] * 9)
    fetch_all_that_is_allowed(world)
    world.cache.rates = {}
    clock.now += 1.5
    assert fetch_all_that_is_allowed(world) == (18, 0)
