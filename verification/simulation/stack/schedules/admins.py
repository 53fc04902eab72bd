"""Directed histories of administrators' requests (elections, reassignments, deletions) and of controllers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.producer import Producer
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.server.periodic_task import BrokerKilled
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.topic_table import TopicTable
from lakelog.verification.simulation.stack.directing import (
    elect,
    freeze,
    is_in_sync,
    its_own_thread,
    kill,
    meanwhile,
    only,
    registration,
    show_life,
    thaw,
    try_to_elect,
    wait_for,
    without,
)
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.stack_processes import Process
from lakelog.verification.simulation.stack.stack_producers import PRODUCER, TOPIC
from lakelog.verification.simulation.stack.stack_world import StackWorld

_LAG_SECONDS = 20  # after which followers that do nothing are out of sync
_TOPIC = "short-lived"


@contextmanager
def _admin(world: StackWorld, *actors: Process) -> Iterator[AdminClient]:
    """An admin client. While it waits, only these processes run."""
    with Changes() as changes, only(world, *actors):
        changes.change("clients.controller_channel", "pause", world._pause)
        yield AdminClient(world.cluster.root.uri)


def delete_above_the_high_watermark(world: StackWorld) -> None:
    """Records that only their leader has are deleted, and then the leader dies."""
    (client, other), (one, two, three) = world.clients, world.nodes.values()
    freeze(two, three)
    with only(world):
        client.send({0: 1}, 1000)
    with _admin(world, one) as admin:
        admin.delete_records({(TOPIC, 0): 1})
    kill(world, one)
    thaw(two, three)
    elect(world, 2, 3)
    with only(world, three, two):
        other.send({0: 2})


def start_over_below_the_own_start(world: StackWorld) -> None:
    """The next leader does not know yet that records were deleted. A follower does, and its log is empty."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    client.send({0: 3})
    world.calm()
    freeze(two)
    with _admin(world, one, three) as admin:
        admin.delete_records({(TOPIC, 0): -1})
    kill(world, one)
    elect(world, 2, 3)
    thaw(two)


def election_of_one_that_is_behind(world: StackWorld) -> None:
    """The preferred leader is to be elected, which is alive but lacks records."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(one)
    wait_for(world, without(world, 1), 2, 3)
    with only(world, two, three):
        client.send({0: 1}, 8000)
    show_life(world, 1, 2, 3)
    thaw(one)
    with _admin(world, *world.controllers) as admin:
        admin.elect_leaders("preferred", [(TOPIC, 0)])


def move_to_one_that_is_behind(world: StackWorld) -> None:
    """A partition is reassigned from a broker that has all its records to one that has none."""
    (client, _) = world.clients
    with _admin(world, *world.servers()) as admin:
        admin.alter_partition_reassignments({(TOPIC, 0): [1, 2]})
        client.send({0: 2})
        admin.alter_partition_reassignments({(TOPIC, 0): [3, 1]})
        for _ in range(20):
            world.go_on()
        admin.alter_partition_reassignments({(TOPIC, 0): [1, 2, 3]})


def _topic(world: StackWorld) -> None:
    """Creates a topic with one record."""
    with _admin(world, *world.servers()) as admin:
        admin.create_topic(_TOPIC, 1, 3)
        Producer(world.cluster.root.uri, "all", config=PRODUCER).send(_TOPIC, pa.table({"value": [b"short"]}))
    world.calm()


def deletion_that_a_broker_is_slow_to_see(world: StackWorld) -> None:
    """A topic is deleted while a live broker has not read the new metadata."""
    _topic(world)
    one, two, _ = world.nodes.values()
    with _admin(world, *world.controllers) as admin:
        admin.delete_topic(_TOPIC)
    wait_for(world, lambda: not is_in_sync(world, 1, one, two), 3)


def deletion_in_two_halves(world: StackWorld) -> None:
    """A controller dies just after it has removed a topic from the topics table."""
    _topic(world)
    change = TopicTable.change

    def dies(table: TopicTable, put: Any, drop: Any, *given: Any) -> Any:
        written = change(table, put, drop, *given)
        actor = world._actor()
        if drop and actor is not None:
            actor.die()
            raise BrokerKilled
        return written

    with Changes() as changes, _admin(world, *world.servers()) as admin:
        changes.change(TopicTable, "change", dies)
        admin.delete_topic(_TOPIC)
        world.calm()


def decision_that_is_overtaken(world: StackWorld) -> None:
    """A controller takes a live leader for dead. Before it commits the election, the leader shrinks the ISR to itself
    and acknowledges records."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(two, three)
    with only(world):
        client.send({0: 1}, 1000)

    def overtake() -> None:
        world.clock.now += _LAG_SECONDS
        with only(world), world.acting(client):
            world.interrupt = lambda: its_own_thread(world, one)  # type: ignore[method-assign]
            client.send({0: 1}, 5000)

    with meanwhile(MetadataTable, "change", overtake):
        try_to_elect(world, 2, 3)
    kill(world, one)
    thaw(two, three)
    try_to_elect(world, 2, 3)


def decision_of_the_controller_before(world: StackWorld) -> None:
    """The machine of a controller is suspended just after a renewal of the lease. Its monotonic clock stands still with
    it, so that the controller still counts on the lease when it runs again. Meanwhile another one was elected, and
    elected a leader. It has not seen yet what the first one sees."""
    one, _, three = world.nodes.values()
    renew, first = Controller._renew, [True]

    def take_over() -> None:
        kill(world, one)
        others = [controller for controller in world.controllers if controller is not world._actor()]
        wait_for(world, lambda: registration(world).leader == 2, 2, 3, controllers=others)
        kill(world, three)
        thaw(three)
        world.run(three)

    def is_suspended(controller: Controller, held: Lease) -> None:
        renew(controller, held)
        if first:
            first.clear()
            take_over()
            controller._seen_at = controller._clock()

    with Changes() as changes:
        changes.change(Controller, "_renew", is_suspended)
        wait_for(world, lambda: not first, 1, 2, 3)
