"""A broker that is gone for good is unregistered: refused while it is alive or has replicas, finished by the next
controller, and fenced should its process wake up."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from lakelog.replication.errors import StaleBrokerEpochException
from lakelog.replication.protocol.admin_request import AdminRequest
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.topic import Entity
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.controller.world import P, World

CORDON = {Entity("brokers", "4"): {"cordoned.log.dirs": "*"}}


@pytest.fixture
def world(root):
    """Broker 4 is dead, cordoned, and has no replica; the others are alive."""
    world = World(root)
    world.beats[4] = BrokerTable.open_or_create(world.cluster.root, 4)
    world.register(4, 7)
    world.cluster.configs.change(CORDON, {"who": "test"})
    world.fail_over()
    for _ in range(2):
        world.poll(1, 2, 3)
    return world


def ask(world, broker, request_id="request", **options):
    """Sends the request and lets the controller poll. Returns the outcome."""
    world.cluster.admin.add(AdminRequest(request_id, "unregister_broker", {"broker": broker}, **options))
    world.poll(1, 2, 3, after=0.0)
    return outcome(world, request_id)


def outcome(world, request_id="request"):
    world.cluster.admin.refresh()
    (found,) = world.cluster.admin.request(request_id).outcomes.values()
    return found.error, found.message


def is_gone(world):
    world.cluster.configs.refresh()
    known = world.cluster.refresh_brokers()
    return 4 not in known, world.cluster.configs.configs == {}, world.cluster.unregistered_brokers == {4}


def test_bc_01_a_dead_broker_without_replicas_is_unregistered_with_its_settings(world):
    assert ask(world, 4, validate_only=True) == (None, "is unregistered")
    assert is_gone(world) == (False, False, False)
    assert ask(world, 4, "again") == (None, "is unregistered")
    assert is_gone(world) == (True, True, True)
    assert (world.controller.context.registered, world.controller.context.unregistered) == ({1, 2, 3}, {4})
    assert ask(world, 4, "and again") == (None, "is unregistered"), "it can be asked again"
    assert BrokerTable.open_if_registered(world.cluster.root, 4).registration is None


@pytest.mark.parametrize(
    ("broker", "error", "words"),
    [
        (9, "BrokerNotAvailableException", "no broker 9 has registered; there are: 1, 2, 3, 4"),
        (-1, "BrokerNotAvailableException", "no broker -1 has registered"),
        (3, "InvalidRequestException", "broker 3 is alive: stop it, and wait until its last heartbeat is older"),
    ],
)  # fmt: skip
def test_bc_01_a_broker_that_is_alive_or_unknown_is_not_unregistered(world, broker, error, words):
    found = ask(world, broker)
    assert (found[0], found[1][: len(words)], is_gone(world)) == (error, words, (False, False, False))


def test_bc_01_a_broker_with_replicas_is_not_unregistered(world):
    world.put(replace(world.all()[P], replicas=(1, 2, 4), isr=(1, 2)))
    world.poll(1, 2, 3)
    error, message = ask(world, 4)
    assert (error, is_gone(world)) == ("InvalidRequestException", (False, False, False))
    assert message == (
        "broker 4 has 1 replica (flights-0): `reassign-partitions --drain 4 --execute` moves them to other brokers"
    )


def delete_flights(world):
    """Deletes the topic, of which broker 4 has a replica, on the brokers that are alive."""
    world.put(replace(world.all()[P], replicas=(1, 2, 4), isr=(1, 2)))
    world.cluster.admin.add(AdminRequest("delete", "delete_topic", {"topic": "flights"}))
    world.poll(1, 2, 3)
    apply(world)


def apply(world):
    """The brokers that are alive delete their replicas, and say so."""
    for broker in (1, 2):
        world.beats[broker].heartbeat(1, "applied", metadata_version=world.controller.context.deletions["flights-id"])
    world.poll(1, 2, 3)


def topics(world):
    world.cluster.topics.refresh()
    return set(world.cluster.topics.topics), set(world.all())


def test_td_04_bc_01_a_deletion_does_not_wait_for_a_broker_that_is_unregistered(world):
    """No drain could move its replica, and nobody else would delete it."""
    delete_flights(world)
    assert topics(world) == ({"flights"}, {P}), "it waits"
    assert ask(world, 4, validate_only=True) == (None, "is unregistered")
    assert topics(world) == ({"flights"}, {P})
    assert ask(world, 4, "again") == (None, "is unregistered")
    assert (is_gone(world), topics(world)) == ((True, True, True), (set(), set()))


def test_td_04_fo_04_a_deletion_goes_on_at_failover_without_a_broker_that_is_unregistered(world):
    delete_flights(world)
    world.cluster.refresh_brokers()
    assert world.cluster.broker_directory.unregister(4, {"who": "the last controller"})
    world.fail_over()
    apply(world)
    assert topics(world) == (set(), set())


class Died(BaseException):
    """A controller was killed."""


@pytest.mark.parametrize("commits", [0, 2, 3, 4, 5])
def test_fo_04_a_controller_that_dies_over_it_is_finished_by_the_next(world, monkeypatch, commits):
    """Taken up, begun, unregistered, its settings removed, answered: killed before any one of these, or after all."""
    commit, left = DeltaLog.commit, [None] * commits
    world.cluster.admin.add(AdminRequest("request", "unregister_broker", {"broker": 4}))

    def die(log, *args, **options):
        if not left:
            raise Died
        left.pop()
        return commit(log, *args, **options)

    with monkeypatch.context() as patched, pytest.raises(Died) if commits < 5 else nullcontext():
        patched.setattr(DeltaLog, "commit", die)
        world.controller.poll()
    world.fail_over()
    world.controller.poll()
    assert (outcome(world), is_gone(world)) == ((None, "is unregistered"), (True, True, True))


def test_bc_01_the_process_that_was_registered_is_fenced_if_it_wakes_up(world):
    ask(world, 4)
    with pytest.raises(StaleBrokerEpochException, match="epoch 7 is fenced: the broker was unregistered"):
        world.beats[4].heartbeat(7, "heartbeat")
    assert is_gone(world) == (True, True, True)


def test_bc_01_a_broker_that_starts_again_registers_under_a_higher_epoch(world):
    ask(world, 4)
    last = []

    def build(found):
        last.append(found.broker_epoch)
        return BrokerRegistration(4, "/new", None, found.broker_epoch + 1, -1, False, None, "log", 0)

    world.beats[4].register(build)
    assert (last, world.cluster.refresh_brokers()[4].broker_epoch) == ([8], 9)
    assert world.cluster.unregistered_brokers == frozenset()
    world.poll(1, 2, 3, after=0.0)
    assert (4 in world.controller.context.brokers, world.controller.context.unregistered) == (True, frozenset())


@pytest.mark.parametrize("moves", [lambda t: t.heartbeat(7, "heartbeat"), lambda t: t.register(lambda _: seen_anew())])
def test_bc_01_a_broker_that_has_moved_since_it_was_read_keeps_its_registration(world, monkeypatch, moves):
    """It sends a heartbeat, or begins, between the decision of the controller and its write."""
    unregister = BrokerTable.unregister

    def late(table, *args):
        moves(world.beats[4])
        return unregister(table, *args)

    monkeypatch.setattr(BrokerTable, "unregister", late)
    assert ask(world, 4) == (
        "InvalidRequestException", "broker 4 has begun or sent a heartbeat meanwhile: stop it first"
    )  # fmt: skip
    assert is_gone(world) == (False, False, False)


def seen_anew():
    return BrokerRegistration(4, "/4", None, 8, -1, False, None, "log", 0)
