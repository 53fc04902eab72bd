"""The controller's reaction to brokers that report a broken storage or a broken file."""

import logging
from dataclasses import replace

import pytest

from lakelog.replication.controller.events import LogDirEventNotification
from lakelog.replication.protocol.replica_states import ReplicaState
from tests.controller.contexts import NOBODY, Active, changed, context, partition, tp
from tests.controller.world import World

ONLINE, OFFLINE = ReplicaState.ONLINE, ReplicaState.OFFLINE


def told(active, **offline):
    """Brokers say which of their partitions are offline: `b1=(0,)` is partition 0 of broker 1."""
    before = active.context.brokers
    said = {int(name[1:]): frozenset(tp(n) for n in numbers) for name, numbers in offline.items()}
    now = {b: replace(view, offline=said.get(b, view.offline)) for b, view in before.items()}
    active.context = replace(active.context, brokers=now)
    return active.process(LogDirEventNotification(before))


@pytest.mark.parametrize(
    ("broker", "leader", "isr", "outcome"),
    [
        pytest.param(1, 1, (1, 2, 3), (2, (2, 3)), id="it leads: another does"),
        pytest.param(2, 1, (1, 2, 3), (1, (1, 3)), id="it follows in sync: it leaves the ISR"),
        pytest.param(1, 1, (1,), (NOBODY, (1,)), id="the last member: it stays, and nobody leads"),
        pytest.param(2, 1, (1, 3), (1, (1, 3)), id="it follows out of sync: it cannot join the ISR"),
    ],
)
def test_ol_01_li_04_a_replica_with_a_broken_file_is_offline_and_its_broker_is_not(broker, leader, isr, outcome):
    rows = (partition(leader=leader, isr=isr), partition(leader=broker, number=1))
    active = Active(context(*rows))
    decision = told(active, **{f"b{broker}": (0,)})
    assert changed(decision) == {"flights-0": outcome}
    assert [active.state(broker, number) for number in (0, 1)] == [OFFLINE, ONLINE]
    assert changed(told(active, **{f"b{broker}": (0,)})) == {}, "once more changes nothing"


def test_ol_01_is_05_an_older_row_of_an_offline_replica_does_not_bring_it_into_the_isr():
    """Its change is decided on the registration as it was. No role changes by that, and none begins anew."""
    before = partition(isr=(1, 3))
    active = Active(context(before))
    told(active, b2=(0,))
    assert active.row() == replace(before, partition_epoch=before.partition_epoch + 1)


@pytest.mark.parametrize(
    ("isr", "outcome"),
    [((1, 2), {}), ((1,), {"flights-0": (1, (1,))})],
    ids=["it has to catch up", "the last member leads again"],
)
def test_ol_01_li_04_a_file_that_is_whole_again_brings_its_replica_back(isr, outcome):
    active = Active(context(partition((1, 2), isr=isr)))
    told(active, b1=(0,))
    assert changed(told(active, b1=())) == outcome
    assert active.state(1) == ONLINE


def test_ol_01_an_offline_replica_is_not_elected():
    active = Active(context(partition((1, 2, 3), 3)))
    told(active, b1=(0,))
    assert active.ask("elect_leaders", election_type="preferred", partitions=["flights-0"]).outcomes[
        "flights-0"
    ].error == ("PreferredLeaderNotAvailableException")
    active.brokers(gone=(3,))
    assert (active.row().leader, active.row().isr) == (2, (2,))


def test_ol_01_le_02_an_unclean_election_skips_an_offline_replica():
    topic = {"unclean.leader.election.enable": "true"}
    active = Active(context(partition((1, 2, 3), 1, (1,)), configs=topic))
    assert changed(told(active, b1=(0,), b2=(0,))) == {"flights-0": (3, (3,))}


def test_ol_01_fo_03_the_next_controller_finds_the_replica_offline():
    active = Active(context(partition(), partition(number=1)))
    told(active, b1=(0,))
    active.fail_over()
    assert [active.state(1, number) for number in (0, 1)] == [OFFLINE, ONLINE]
    assert (active.row().leader, active.row().isr) == (2, (2, 3))


def test_ol_01_fo_03_a_failover_handles_a_fault_that_no_controller_has_seen():
    active = Active(context(partition()))
    views = {
        b: replace(view, offline=frozenset({tp()} if b == 1 else ())) for b, view in active.context.brokers.items()
    }
    active.context = replace(active.context, brokers=views)
    decision = active.fail_over()
    assert changed(decision) == {"flights-0": (2, (2, 3))}


def test_ol_01_bu_01_a_broker_that_comes_back_with_a_broken_file_has_the_rest_online():
    active = Active(context(partition((1, 2)), partition((1, 2), number=1)))
    active.brokers(gone=(1,))
    before = active.context.brokers
    active.brokers(come=(1,))
    told(active, b1=(0,))
    assert [active.state(1, number) for number in (0, 1)] == [OFFLINE, ONLINE]
    assert 1 not in before


def test_ol_01_td_02_a_deletion_goes_on_where_a_file_is_broken():
    active = Active(context(partition()))
    told(active, b1=(0,))
    active.ask("delete_topic", topic="flights")
    assert active.state(1) == ReplicaState.DELETION_STARTED
    assert changed(told(active, b1=(), b2=(0,))) == {}
    assert active.state(2) == ReplicaState.DELETION_STARTED


def test_ol_01_ra_03_a_reassignment_waits_for_a_replica_that_can_lead():
    active = Active(context(partition((1, 2), isr=(1, 2))))
    told(active, b2=(0,))
    active.ask("alter_partition_reassignments", reassignments={"flights-0": [2]})
    active.isr(1, 2)
    told(active, b3=())
    assert active.row().removing_replicas == (1,)
    told(active, b2=())
    assert (active.row().replicas, active.row().leader) == ((2,), 2)


@pytest.fixture
def world(root):
    return World(root)


def say(world, broker, **changes):
    world.beats[broker].refresh()
    world.beats[broker].heartbeat(1, "test", **changes)
    world.controller.poll()


def test_ol_02_li_04_a_broker_with_a_storage_error_has_failed(world, caplog):
    with caplog.at_level(logging.WARNING, "state.change.logger"):
        say(world, 1, storage_error="the disk is gone")
    assert "LogDirEventNotification: broker 1 has failed: the disk is gone" in caplog.text
    assert world.partition()[:2] == (2, (2, 3))
    world.register(1, epoch=2)
    world.controller.poll()
    assert 1 in world.controller.context.live_brokers
    assert world.partition()[:2] == (2, (2, 3))


def test_ol_01_li_04_the_row_of_a_broker_names_its_offline_replicas(world):
    say(world, 1, offline_partitions=("flights-id/0",))
    assert world.partition()[:2] == (2, (2, 3))
    assert 1 in world.controller.context.live_brokers
    say(world, 1, offline_partitions=())
    assert world.controller.context.brokers[1].offline == frozenset()
