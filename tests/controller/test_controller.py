"""Controllers and their lease on a cluster's tables. Each controller has a clock that the test moves."""

import pytest

from lakelog.replication.config import Config
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.controller.decision import DecisionInterrupted
from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.controller_lease import ControllerLease
from tests.clock import Clock
from tests.copied_roots import copied
from tests.processes import race
from tests.registrations import joined
from tests.storage.delta.answers import lose_an_answer

P = TopicIdPartition("flights-id", 0)
TIMEOUT = 6.0


def two_brokers(home):
    format_cluster(home, Config())
    for broker in (1, 2):
        row = BrokerRegistration(broker, f"/{broker}", None, 1, -1, False, None, "log", 0)
        BrokerTable.open_or_create(home, broker).register(lambda _, row=row: row)


class World:
    """Brokers 1 and 2, a partition that 1 leads, and as many controllers as a test starts."""

    def __init__(self, root):
        self.home = StorageRoot.of(root).child("cluster")
        copied(two_brokers, self.home)
        self.cluster, self.clock = Cluster.open(self.home.uri), Clock()
        self.beats = {broker: BrokerTable.open_or_create(self.home, broker) for broker in (1, 2)}
        self.cluster.topics.change([Topic("flights", "flights-id", 1, {})], (), {"who": "test"})
        self.cluster.metadata.put([joined(new_partition("flights", "flights-id", 0, (1, 2), (1, 2)))], {"who": "test"})

    def controller(self, name):
        return Controller(Cluster.open(self.home.uri), name, self.clock)

    def lease(self):
        return ControllerLease.open(self.home).read()

    def lease_holder(self):
        lease = self.lease()
        return lease.controller_id, lease.controller_epoch

    def leader(self):
        self.cluster.metadata.refresh()
        found = self.cluster.metadata.partitions[P]
        return found.leader, found.controller_epoch

    def pass_time(self, seconds, *controllers, alive=(1, 2), step=1.0):
        """Lets time pass. These controllers do rounds, and these brokers send heartbeats."""
        for _ in range(int(seconds / step)):
            self.clock.now += step
            for broker in alive:
                self.beats[broker].heartbeat(1, "heartbeat")
            for controller in controllers:
                controller.tick()


@pytest.fixture
def world(root):
    return World(root)


def test_ce_01_ce_02_the_first_controller_is_elected_and_the_second_stands_by(world):
    a, b = world.controller("a"), world.controller("b")
    a.tick()
    b.tick()
    assert (world.lease_holder(), a.is_active, b.is_active) == (("a", 1), True, False)
    world.pass_time(60, a, b)
    assert (world.lease().controller_id, world.lease().controller_epoch, b.is_active) == ("a", 1, False)


def test_ce_04_ev_04_a_lease_that_stands_still_is_taken_over(world):
    a, b = world.controller("a"), world.controller("b")
    a.tick()
    b.tick()
    world.pass_time(TIMEOUT - 1, b)
    assert not b.is_active, "not before the session time-out, by the clock of who stands by"
    world.pass_time(1, b)
    assert (world.lease_holder(), b.is_active) == (("b", 2), True)


def test_ce_06_a_standby_is_elected_at_once_after_a_resignation(world):
    a, b = world.controller("a"), world.controller("b")
    a.tick()
    a.start()
    a.stop()
    b.tick()
    assert (world.lease_holder(), a.is_active, b.is_active) == (("b", 2), False, True)


def test_ce_05_writes_of_a_deposed_controller_are_refused(world):
    a, b = world.controller("a"), world.controller("b")
    a.tick()
    b.tick()
    world.pass_time(TIMEOUT, b)
    a._active.poll()
    world.pass_time(TIMEOUT + 1, alive=(2,))
    with pytest.raises(DecisionInterrupted, match="b was elected under epoch 2"):
        a._active.poll()
    a._active._keep_lease = lambda: None  # it does not read its lease while it decides
    with pytest.raises(ControllerMovedException, match="metadata: controller epoch 1 is over: epoch 2"):
        a._active.poll()
    with pytest.raises(ControllerMovedException, match="b was elected under epoch 2"):
        a.tick()
    assert world.leader() == (1, 0), "it has written nothing"
    b.tick()
    assert world.leader() == (2, 2)


def test_ce_05_a_controller_whose_lease_was_deleted_is_deposed(world):
    """Somebody has emptied the table."""
    a = world.controller("a")
    a.tick()
    ControllerLease.open(world.home).update({"who": "test"}, lambda _: [])
    for write in (a._cluster.lease.renew, a._cluster.lease.resign):
        with pytest.raises(ControllerMovedException, match="a: controller epoch 1 is over: nobody is elected"):
            write(Lease("a", 1))
    world.clock.now += TIMEOUT / 3
    a.round()
    assert not a.is_active


def test_ce_02_a_slow_renewal_counts_from_its_beginning(world, monkeypatch):
    """Others have seen it at once, and wait no longer for the next one because the answer was late."""
    a, renewals = world.controller("a"), []
    a.tick()
    renew = a._cluster.lease.renew

    def slow(held):
        renewals.append(world.clock.now)
        renewed = renew(held)
        world.clock.now += TIMEOUT / 3
        return renewed

    monkeypatch.setattr(a._cluster.lease, "renew", slow)
    world.clock.now += TIMEOUT / 3
    first = world.clock.now
    a.tick()
    a.tick()
    assert renewals == [first, first + TIMEOUT / 3]


def test_ce_05_a_deposed_controller_stands_by_and_may_be_elected_again(world):
    a, b = world.controller("a"), world.controller("b")
    a.tick()
    b.tick()
    world.pass_time(TIMEOUT, b)
    assert a.is_active, "it does not know yet"
    a.round()
    assert not a.is_active
    a.round()
    world.pass_time(TIMEOUT, a)
    assert world.lease_holder() == ("a", 3)


def test_fo_01_controller_and_broker_lost_together_cost_one_time_out(world):
    a, b = world.controller("a"), world.controller("b")
    world.pass_time(3, a, b)
    world.pass_time(TIMEOUT, b, alive=(2,))
    assert b.is_active
    world.pass_time(1, b, alive=(2,))
    assert world.leader() == (2, 2), "the standby has followed the heartbeats all along"


@pytest.mark.parametrize("landed", [True, False], ids=["it had landed", "it had not"])
def test_ce_03_an_election_whose_answer_is_lost_is_won_once(world, monkeypatch, landed):
    lost = lose_an_answer(monkeypatch, lambda _, cause: cause["why"] == "elected", landed)
    a = world.controller("a")
    a.tick()
    assert (len(lost), world.lease_holder(), a.is_active) == (1, ("a", 1), True)


def stand_for_election(start, uri, name):
    """Stands for election. Returns whether this process won."""
    lease = ControllerLease.open(StorageRoot.of(uri))
    seen = lease.read()
    start()
    return lease.elect(name, seen)


def test_ce_02_one_of_several_candidates_is_elected(world):
    uri = world.home.uri
    elected = race(stand_for_election, *((uri, name) for name in ("a", "b", "c")))
    winners = [lease for lease in elected if lease is not None]
    assert winners == [world.lease()]
    assert world.lease().controller_epoch == 1
