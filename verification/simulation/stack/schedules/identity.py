"""Directed histories of moments in which something is not what it seems: another cluster root at the same address, one
that comes back after it was recovered elsewhere, and a producer that was copied."""

from __future__ import annotations

from lakelog.replication.storage.root_recovery import Recovery
from lakelog.verification.simulation.stack.directing import elect, freeze, meanwhile, thaw
from lakelog.verification.simulation.stack.rates import OLDER, OTHERS
from lakelog.verification.simulation.stack.stack_producers import StackProducer
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


def lost_root(world: StackWorld) -> None:
    """The cluster root is lost while broker 1 is down, which lacks acknowledged records."""
    (client, _), node = world.clients, world.nodes[1]
    client.send({0: 1})
    world.calm()
    freeze(node)
    elect(world, 2, 3)
    client.send({0: 2})
    world.roots.lose(comes_back=False)
    thaw(node)
    _go_on(world)


def lost_root_in_use(world: StackWorld) -> None:
    """A recovery has planned that all replicas are in sync. Before it writes that, processes that still have the old
    root take two out of the ISR, and a producer sends. Then one of the two leads."""
    (client, other), node = world.clients, world.nodes[1]
    client.send({0: 1})
    world.calm()

    def send_to_one() -> None:
        freeze(world.nodes[2], world.nodes[3])
        other.send({0: 1})
        thaw(world.nodes[2], world.nodes[3])

    with meanwhile(Recovery, "_write_tables", send_to_one):
        world.roots.lose(comes_back=True)
    freeze(node)
    _go_on(world)
    thaw(node)


def lost_root_that_comes_back(world: StackWorld) -> None:
    """The cluster root was lost and recovered elsewhere, and comes back. Processes go on with both."""
    (client, _) = world.clients
    client.send({0: 2, 1: 2})
    world.calm()
    world.roots.lose(comes_back=True)
    _go_on(world)


def lost_root_of_a_leader(world: StackWorld) -> None:
    """The root of broker 2, which leads, is lost with the cluster root, while broker 1 is down and lacks acknowledged
    records. Two brokers have each of them, so broker 3 has them, too."""
    (client, _), node = world.clients, world.nodes[1]
    world.need(2)
    for controller in world.controllers:
        controller.kill()  # it reads topics when it begins, as nobody else changes them
    client.send({0: 1})
    world.calm()
    freeze(node)
    elect(world, 2, 3)
    client.send({0: 2})
    _run(world)
    world.roots.lose(comes_back=False, missing=world.nodes[2])
    thaw(node)
    _go_on(world)


def lost_root_of_the_only_one_in_sync(world: StackWorld) -> None:
    """The root of the only broker that has acknowledged records is missing when the cluster root is lost. The recovery
    says so, and it is found."""
    (client, _), node = world.clients, world.nodes[1]
    client.send({0: 1})
    world.calm()
    freeze(world.nodes[2], world.nodes[3])
    elect(world, 1)
    client.send({0: 2})
    _run(world)
    world.roots.lose(comes_back=False, missing=node)
    thaw(world.nodes[2], world.nodes[3])
    _go_on(world)


def restored_root_on_a_lost_one(world: StackWorld) -> None:
    """The root of broker 1 is restored from before a recovery, and its broker is started on the old cluster root, which
    has come back. There it is in sync, and is elected. A producer that uses the old cluster root sends."""
    (client, _), node, old = world.clients, world.nodes[1], world.cluster.root.uri
    client.send({0: 1, 1: 1})
    world.calm()
    world.disasters.back_up(node)
    world.roots.lose(comes_back=True)
    _go_on(world)
    with world.acting(None):
        world.disasters.restore(node)
    world.roots.start_on_lost(node)
    thaw(node)
    _run(world)
    producer = StackProducer("producer-3", old)
    world.clients.append(producer)
    producer.send({0: 1, 1: 1})


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
    _run(world)
    other.send({0: 1}, 2000)
    client.send({0: 1}, 2000)


def _run(world: StackWorld) -> None:
    for _ in range(_ROUNDS):
        world.go_on()
