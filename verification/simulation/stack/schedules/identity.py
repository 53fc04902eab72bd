"""Directed histories of moments in which something is not what it seems: another cluster root at the same address, and
a producer that was copied."""

from __future__ import annotations

from lakelog.verification.simulation.stack.directing import elect, freeze, thaw
from lakelog.verification.simulation.stack.rates import OLDER, OTHERS
from lakelog.verification.simulation.stack.stack_world import StackWorld

_ROUNDS = 40


def root_of_others(world: StackWorld) -> None:
    """The root of another cluster lies at the address for a while."""
    (client, _) = world.clients
    client.send({0: 2, 1: 2})
    world.calm()
    world.roots.replace(OTHERS)
    _go_on(world)
    world.roots.put_back()


def start_on_an_older_root(world: StackWorld) -> None:
    """An older copy of the root lies at the address when all processes begin anew. In it, broker 1 leads, which has
    left the ISR since and lacks acknowledged records. It has noted the newer state, and ended before it acted on it."""
    (client, _), node = world.clients, world.nodes[1]
    client.send({0: 1})
    world.calm()
    world.roots.back_up()
    freeze(node)
    elect(world, 2, 3)
    client.send({0: 2})
    assert node.broker is not None
    with world.acting(node):
        node.broker._cluster.metadata.refresh()
        node.broker._cluster.note_what_was_seen(node.root)
    world.roots.replace(OLDER)
    for process in world.processes():
        process.kill()
    thaw(node)
    _go_on(world)
    world.roots.put_back()


def copied_producer(world: StackWorld) -> None:
    """A producer is copied. Both copies send other records under the same sequences."""
    (client, _) = world.clients
    client.send({0: 1})
    copy = client.copied("producer-3")
    assert copy is not None
    world.clients.append(copy)
    for producer in (client, copy, client):
        producer.send({0: 1})


def _go_on(world: StackWorld) -> None:
    """Lets all servers run, and then a producer send."""
    (client, other) = world.clients
    for _ in range(_ROUNDS):
        world.go_on()
    other.send({0: 1}, 2000)
    client.send({0: 1}, 2000)
