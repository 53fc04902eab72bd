"""The active controller logs one line for each broker that starts or stops, with the effect on partitions."""

import logging
from dataclasses import replace

import pytest

from lakelog.replication.controller.active_controller import cluster_changes, overview
from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from tests.controller.contexts import NOBODY, context, partition
from tests.controller.world import World

LEADS_1, LEADS_2 = partition(), partition((2, 3), number=1)
OFFLINE = replace(LEADS_1, leader=NOBODY)
MOVED = replace(LEADS_1, leader=2, isr=(2, 3))


def seen(*partitions, live=(1, 2, 3), registered=(1, 2, 3), shutting_down=()):
    return context(*partitions, live=live, registered=registered, shutting_down=shutting_down)


def epoch_of_1(epoch, **fields):
    found = seen(LEADS_1, **fields)
    return replace(found, brokers={**found.brokers, 1: BrokerView(epoch)})


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (seen(LEADS_1), seen(LEADS_1), []),
        (seen(live=(1, 2), registered=(1, 2)), seen(), ["broker 3 has registered under broker epoch 1"]),
        (seen(live=(1, 2)), seen(), ["broker 3 is back under broker epoch 1"]),
        (seen(), seen(live=(2, 3)), ["broker 1 is lost (no heartbeat for 6 s)"]),
        (seen(), epoch_of_1(7), ["broker 1 has started again under broker epoch 7"]),
        (seen(), seen(shutting_down=(1,)), ["broker 1 is shutting down"]),
        (seen(shutting_down=(1,)), seen(shutting_down=(1,)), []),
        (seen(shutting_down=(1,)), seen(live=(2, 3)), ["broker 1 has stopped"]),
        (
            seen(LEADS_1, LEADS_2),
            seen(MOVED, LEADS_2, live=(2, 3)),
            [
                "broker 1 is lost (no heartbeat for 6 s): 1 partition has a new leader (flights-0), "
                "broker 1 leaves 1 ISR (flights-0)"
            ],
        ),
        (
            seen(LEADS_1),
            seen(OFFLINE, live=()),
            [
                "broker 1 is lost (no heartbeat for 6 s)",
                "broker 2 is lost (no heartbeat for 6 s)",
                "broker 3 is lost (no heartbeat for 6 s)",
                "BrokerChange: 1 partition is offline (flights-0)",
            ],
        ),
        (seen(OFFLINE), seen(LEADS_1), ["BrokerChange: 1 partition is online again (flights-0)"]),
    ],
)
def test_each_change_of_the_cluster_is_logged_in_one_line(before, after, lines):
    assert cluster_changes(before, after, "BrokerChange", {}) == lines


def test_ol_02_a_broker_whose_storage_fails_is_lost_for_that_reason():
    lost = cluster_changes(seen(), seen(live=(2, 3)), "BrokerChange", {1: "disk full", 2: "old"})
    assert lost == ["broker 1 is lost (its storage fails: disk full)"]


def test_the_overview_at_failover_is_one_line():
    found = seen(OFFLINE, LEADS_2, live=(2, 3))
    assert overview(found) == "brokers alive: 2, 3; dead: 1; partitions: 2, 1 of them offline"
    assert overview(seen()) == "brokers alive: 1, 2, 3; dead: none; partitions: 0, 0 of them offline"


@pytest.fixture
def world(root):
    return World(root)


@pytest.fixture
def lines(caplog):
    """The log lines since the last call."""
    caplog.set_level(logging.INFO, "lakelog.replication.controller.active_controller")

    def since():
        found = [record.getMessage() for record in caplog.records if "active_controller" in record.name]
        caplog.clear()
        return found

    return since


LOST = (
    "controller epoch 1: broker 1 is lost (no heartbeat for 6 s): 1 partition has a new leader (flights-0), "
    "broker 1 leaves 1 ISR (flights-0)"
)


def test_bl_12_a_broker_that_is_lost_and_back_is_logged_once_each(world, lines):
    world.poll(1, 2, 3)
    assert lines() == [], "nothing has changed"
    world.poll(2, 3)
    assert lines() == [LOST]
    world.poll(2, 3)
    assert lines() == []
    world.poll(1, 2, 3)
    assert lines() == ["controller epoch 1: broker 1 is back under broker epoch 1"]


def test_bl_12_an_isr_change_of_a_leader_is_logged(world, lines):
    found = world.partition
    assert found() == (1, (1, 2, 3), 0, 0)
    (registration,) = world.all().values()
    world.cluster.metadata.put([replace(registration, isr=(1, 3), partition_epoch=1)], {"who": "broker-1"})
    world.poll(1, 2, 3)
    assert lines() == ["controller epoch 1: IsrChangeNotification: broker 2 leaves 1 ISR (flights-0)"]


def test_bl_12_a_commit_whose_answer_is_lost_is_logged(world, lines, monkeypatch):
    """The next attempt finds the new leader in the table, and has nothing left to write."""
    commit, left = DeltaLog.commit, [1]

    def lose(log, cause, *words, **more):
        version = commit(log, cause, *words, **more)
        if left and log.root.uri.endswith("metadata"):
            left.pop()
            raise CommitUnknown("no answer")
        return version

    monkeypatch.setattr(DeltaLog, "commit", lose)
    world.poll(2, 3)
    assert (left, lines()) == ([], [LOST])


def test_bl_12_a_change_is_logged_only_once_it_has_landed(world, lines, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "commit", lambda *_, **__: (_ for _ in ()).throw(CommitUnknown("away")))
        with pytest.raises(KafkaStorageException):
            world.poll(2, 3)
    assert lines() == []
    world.poll(2, 3)
    assert lines() == [LOST]


def test_bl_12_a_new_controller_logs_the_changes_since_the_last_one(world, lines):
    world.clock.now += 7
    for broker in (2, 3):
        world.beats[broker].heartbeat(1, "heartbeat")
    world.liveness.observe(world.cluster.refresh_brokers())
    world.fail_over()
    assert lines() == [LOST.replace("epoch 1: ", "epoch 2: ", 1)]
