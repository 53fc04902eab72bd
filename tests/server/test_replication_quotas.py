"""A broker's quotas: to which replicas they apply, and what the broker reports about them."""

import dataclasses
from types import SimpleNamespace

import pytest

from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.server.replication_quotas import ReplicationQuotas
from tests.clock import Clock
from tests.server.quota_cache import QuotaCache
from tests.storage.logs import P0, P1, TOPIC, fill, new_log

BEHIND = {P0: 1, P1: 1}  # the leader's HW is ahead of both by a record
BOTH, OF_0 = {"leader": "0:1", "follower": "0:2"}, {"follower": "0:2"}


def quotas(**cache):
    """The quotas of broker 2, which follows broker 1, with a clock that the test moves."""
    return ReplicationQuotas(2, QuotaCache(**cache), Clock())


def limits(found):
    return [(set(limit.partitions), limit.max_bytes) for limit in found.limits]


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ({"rates": {2: {"follower": 5}}}, []),
        ({"replicas": OF_0}, []),
        ({"replicas": OF_0, "rates": {1: {"follower": 5}, 2: {"leader": 5}}}, []),
        ({"replicas": {"follower": "0:1"}, "rates": {2: {"follower": 5}}}, []),
        ({"replicas": OF_0, "rates": {2: {"follower": 5}}}, [({P0}, 5)]),
        ({"replicas": {"follower": "*"}, "rates": {2: {"follower": 5}}}, [({P0, P1}, 5)]),
        ({"replicas": {"leader": "1:1"}, "rates": {1: {"leader": 5}}}, [({P1}, 5)]),
        ({"replicas": {"leader": "1:2"}, "rates": {1: {"leader": 5}}}, []),
        ({"replicas": {"leader": "1:1"}, "rates": {1: {"leader": 6}}, "brokers": (1, 2, 3, 4)}, [({P1}, 2)]),
        ({"replicas": {"leader": "1:1"}, "rates": {1: {"leader": 6}}, "brokers": (1, 2, 3, 4), "isr": (1, 4)},
         [({P1}, 3)]),
        ({"replicas": BOTH, "rates": {1: {"leader": 5}, 2: {"follower": 7}}}, [({P0}, 7), ({P0}, 5)]),
        ({"replicas": OF_0, "rates": {2: {"follower": 5}}, "isr": (1, 2)}, [(set(), 5)]),
    ],
    ids=[
        "nothing is throttled", "no rate", "rates of other roles", "throttled elsewhere", "as a follower", "all",
        "at the leader", "at a leader that it is not", "a share of three", "one of them is in sync", "both", "in sync",
    ],
)  # fmt: skip
def test_th_02_leader_and_follower_quotas_apply_to_their_throttled_replicas(cache, expected):
    found = quotas(**cache).throttle(1, BEHIND)
    assert (limits(found), found.left_out) == (expected, {})


@pytest.mark.parametrize(
    ("cache", "fetched", "left_out"),
    [
        ({"replicas": OF_0, "rates": {2: {"follower": 10}}}, {P0: 10}, {}),
        ({"replicas": OF_0, "rates": {2: {"follower": 10}}}, {P0: 50}, {P0: 5.0}),
        ({"replicas": OF_0, "rates": {2: {"follower": 10}}}, {P1: 50}, {}),
        ({"replicas": OF_0, "rates": {2: {"follower": 10}}, "isr": (1, 2)}, {P0: 50}, {}),
        ({"replicas": {"follower": "*"}, "rates": {2: {"follower": 10}}}, {P0: 50}, {P0: 5.0, P1: 5.0}),
        ({"replicas": BOTH, "rates": {1: {"leader": 5}, 2: {"follower": 10}}}, {P0: 50}, {P0: 10.0}),
        ({"replicas": BOTH, "rates": {1: {"leader": 50}, 2: {"follower": 10}}}, {P0: 50}, {P0: 5.0}),
        ({"replicas": OF_0, "rates": {2: {"follower": 0}}}, {}, {P0: 11.0}),
    ],
    ids=["not exceeded", "exceeded", "by what is not throttled", "in sync", "all", "both", "one of both", "nothing"],
)
def test_th_01_throttled_partitions_are_delayed_until_the_quota_allows_them(cache, fetched, left_out):
    found = quotas(**cache)
    found.throttle(1, BEHIND)
    found.record(1, fetched)
    assert found.throttle(1, BEHIND).left_out == left_out


@pytest.mark.parametrize(("lag", "is_left_out"), [(1, True), (0, False), (-5, False)])
def test_th_01_a_partition_without_lag_is_not_delayed(lag, is_left_out):
    """The leader may have added it to the ISR, which this metadata does not show yet."""
    found = quotas(replicas=OF_0, rates={2: {"follower": 10}})
    found.throttle(1, BEHIND)
    found.record(1, {P0: 50})
    assert (P0 in found.throttle(1, {P0: lag}).left_out) is is_left_out


def test_th_02_a_leader_quota_applies_per_leader_and_a_follower_quota_to_all_fetchers():
    made = ReplicationQuotas(2, QuotaCache({"leader": "*", "follower": "0:2"}, {1: {"leader": 9}}), Clock())
    for leader in (1, 3):
        made.throttle(leader, BEHIND)
    made.record(1, {P1: 90})
    assert [set(made.throttle(leader, {P1: 1}).left_out) for leader in (1, 3)] == [{P1}, set()]


def test_th_01_a_partition_that_the_metadata_does_not_know_is_not_throttled():
    found = quotas(replicas={"follower": "*"}, rates={2: {"follower": 0}})
    found._cache.partitions.clear()
    assert found.throttle(1, {P0: 1}).left_out == {}


def test_th_02_a_heartbeat_has_the_quotas_and_rates_of_a_follower():
    clock = Clock()
    made = ReplicationQuotas(2, QuotaCache(OF_0, {2: {"follower": 100, "leader": 7}}), clock)
    made.throttle(1, BEHIND)
    made.record(1, {P0: 60, P1: 1000})
    clock.now += 2
    assert made.figures() == {
        "leader_replication_quota": 7, "leader_replication_rate": 0,
        "follower_replication_quota": 100, "follower_replication_rate": 30,
    }  # fmt: skip
    made._cache.rates = {}
    found = made.figures()
    assert (found["leader_replication_quota"], found["follower_replication_quota"]) == (None, None)


class World:
    """Broker 1 leads both partitions, whose replica 0 alone is throttled; broker 2 follows."""

    def __init__(self, root):
        self.log = new_log(root, P0, P1)
        for partition in (P0, P1):
            fill(self.log, partition, 2, 2, 2)  # 4 bytes each
        self.clock, self.cache = Clock(), QuotaCache({"leader": "0:1"}, brokers=(1, 2, 3))
        self.table = SimpleNamespace(replicas={})
        self.cache.tables[2] = self.table
        self.quotas = ReplicationQuotas(1, self.cache, self.clock)

    def rate(self, *ends, **told):
        """The rate that it reports after a follower has reached these offsets, one after the other."""
        for end in ends:
            row = ReplicaStatus(
                TOPIC, P0.topic_id, 0, 2, 1, 0, "follower", "Fetching", 0, end, 0, (), None, 1
            )  # fmt: skip
            self.table.replicas = {p: dataclasses.replace(row, partition=p.partition, **told) for p in (P0, P1)}
            self.quotas.poll_followers(self.cache.partitions.values, self.log.refresh())
        return self.quotas.figures()["leader_replication_rate"]


@pytest.mark.parametrize(
    ("ends", "told", "expected"),
    [
        ([6], {}, 0),
        ([0, 4], {}, 8),
        ([0, 4, 4, 6], {}, 12),
        ([4, 0], {}, 0),
        ([0, 4], {"state": "Delayed"}, 8),
        ([0, 4], {"state": "Truncating"}, 0),
        ([0, 4], {"leader_epoch": 1}, 0),
    ],
    ids=[
        "at first sight",
        "two batches",
        "three",
        "backwards",
        "held back",
        "about to be truncated",
        "of another epoch",
    ],
)
def test_th_02_a_leader_measures_what_its_throttled_followers_fetch(root, ends, told, expected):
    assert World(root).rate(*ends, **told) == expected


def test_th_02_a_leader_that_throttles_nothing_measures_nothing(root):
    world = World(root)
    world.cache.replicas = {}
    assert world.rate(0, 4) == 0
