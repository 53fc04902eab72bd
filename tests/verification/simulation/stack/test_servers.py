"""Servers over a store in memory are started, frozen, stopped and killed while simulated time passes."""

import random
import time
from collections.abc import Iterator
from functools import partial

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import DuplicateBrokerRegistrationException
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.verification.memory_root import MemoryStore
from lakelog.verification.simulation.stack.held_time import Passing, Schedule
from lakelog.verification.simulation.stack.one_thread import Changes, Clock, in_one_thread
from lakelog.verification.simulation.stack.servers import BrokerServer, ControllerServer

CLUSTER = "memory://servers/cluster"
TICK = 0.05


@pytest.fixture
def schedule() -> Iterator[Schedule]:
    clock = Clock()
    with Changes() as changes:
        in_one_thread(changes, clock, random.Random(0))
        changes.enter_context(MemoryStore("servers", True, clock.wall).opened())
        cluster_id = format_cluster(StorageRoot.of(CLUSTER), Config())
        format_broker(StorageRoot.of("memory://servers/broker-1"), cluster_id, 1)
        yield Schedule(clock)


@pytest.fixture
def broker(schedule: Schedule) -> BrokerServer:
    made = BrokerServer(1, CLUSTER, StorageRoot.of("memory://servers/broker-1"), schedule, {})
    schedule.repeat(partial(made.run, random.Random(0)), TICK)
    return made


def heartbeat() -> int:
    found = BrokerTable.open(StorageRoot.of(CLUSTER), 1).registration
    assert found is not None
    return found.heartbeat


def test_what_is_due_happens_in_its_order_and_nothing_before_time_passes() -> None:
    clock, done = Clock(), []
    schedule, begun = Schedule(clock), clock.now
    schedule.repeat(lambda: done.append(("a", clock.now - begun)), 2)
    end = schedule.repeat(lambda: done.append(("b", clock.now - begun)), 3)
    assert done == []
    assert not Passing(schedule).wait(6)
    assert done == [("a", 2), ("b", 3), ("a", 4), ("a", 6), ("b", 6)]
    end()
    schedule.let_pass(3)
    assert (done[5:], clock.now - begun) == ([("a", 8)], 9)


def test_a_frozen_broker_shows_no_life_and_goes_on_when_it_is_thawed(schedule: Schedule, broker: BrokerServer) -> None:
    broker.start()
    schedule.let_pass(5)
    before = heartbeat()
    broker.freeze()
    schedule.let_pass(5)
    assert (heartbeat(), broker.is_frozen, broker.runs) == (before, True, True)
    broker.thaw()
    schedule.let_pass(5)
    assert heartbeat() > before


def test_who_starts_waits_for_as_long_as_the_process_before_may_live(schedule: Schedule, broker: BrokerServer) -> None:
    broker.start()
    schedule.let_pass(1)
    epoch = broker.epoch
    broker.kill()
    assert not broker.runs
    begun = time.monotonic()
    broker.start()
    interval = broker.broker._config.broker_heartbeat_interval_ms / 1000
    assert 2 * interval <= time.monotonic() - begun <= 2 * interval + 1
    assert (broker.runs, broker.epoch) == (True, epoch + 1)


def test_a_second_process_is_refused_while_the_first_one_lives(schedule: Schedule, broker: BrokerServer) -> None:
    broker.start()
    second = BrokerServer(1, CLUSTER, broker.root, schedule, {})
    with pytest.raises(DuplicateBrokerRegistrationException):
        second.start()
    assert (second.runs, broker.runs) == (False, True)


def test_a_broker_that_is_stopped_registers_that_it_shuts_down(schedule: Schedule, broker: BrokerServer) -> None:
    broker.start()
    schedule.let_pass(1)
    broker.stop()
    found = BrokerTable.open(StorageRoot.of(CLUSTER), 1).registration
    assert (broker.runs, found and found.shutting_down) == (False, True)


def test_ce_06_a_controller_resigns_when_it_is_stopped_and_not_when_it_is_killed(schedule: Schedule) -> None:
    controller = ControllerServer("controller-1", CLUSTER, Config())
    schedule.repeat(partial(controller.run, random.Random(0)), TICK)
    lease = Cluster.open(CLUSTER).lease
    for end, resigned in ((controller.stop, True), (controller.kill, False)):
        controller.start()
        schedule.let_pass(1)
        held = lease.read()
        assert held is not None
        assert controller.has_id(held.controller_id)
        end()
        held = lease.read()
        assert (controller.runs, controller.has_id(held.controller_id), held.resigned) == (False, False, resigned)
