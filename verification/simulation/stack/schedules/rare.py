"""Directed histories of rare moments in which a bug lost or doubled records: producers, power cuts, files."""

from __future__ import annotations

from collections.abc import Callable

from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.schemas import LOG
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack.directing import elect, first
from lakelog.verification.simulation.stack.faulty_store import lose_end
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.stack_processes import Process
from lakelog.verification.simulation.stack.stack_producers import Interrupted, StackProducer
from lakelog.verification.simulation.stack.stack_world import StackWorld

_COMMITS = 6  # between two clean-ups of a table's log


def interrupted_send(world: StackWorld) -> None:
    """A send is interrupted after its records have landed and before it knows. The next send has other records."""
    (client, _) = world.clients
    client.send({0: 1})
    commit = DeltaLog.commit

    def stopped(log: DeltaLog, *args: object, **options: object) -> int:
        commit(log, *args, **options)  # type: ignore[arg-type]
        raise Interrupted

    with Changes() as changes:
        changes.change(DeltaLog, "commit", stopped)
        client.send({0: 2})
    client.send({0: 2})


def leader_without_its_end(world: StackWorld) -> None:
    """A leader loses power and the end of its log, restarts at once, and gets records before a controller polls."""
    (client, other), node = world.clients, world.nodes[1]
    for _ in range(3):
        client.send({0: 1})
    world.calm()
    with world.acting(None):
        world.disasters.cut_power(node, 2)
    for controller in world.controllers:
        controller.frozen_until = world.clock.now + 3
    node.frozen_until = 0.0
    for _ in range(2):
        world.run(node)
    brokers = [lambda n=n: world.run(n) for n in world.nodes.values()]  # type: ignore[misc]
    with first(world, *brokers * 4):
        other.send({0: 1})


def append_to_a_dead_leader(world: StackWorld) -> None:
    """A leader loses power and the end of its log, but not its row. Before a controller polls, a producer appends at
    offsets below the high watermark of the row."""
    (client, other), node = world.clients, world.nodes[1]
    for _ in range(3):
        client.send({0: 1})
    world.calm()
    with world.acting(None):
        world.disasters.damage(node)
        lose_end(node.root.child(LOG.name), 2)
    down: list[Process] = [node, *world.controllers]
    for process in down:
        process.frozen_until = world.clock.now + 3
    other.send({0: 1}, 20_000)


def tail_of_a_deposed_leader(world: StackWorld) -> None:
    """A deposed leader has records that no other has, and publishes its rows while its fetcher truncates them."""
    (client, _), node = world.clients, world.nodes[1]
    for number in (2, 3):
        world.nodes[number].frozen_until = world.clock.now + 3
    client.send({0: 2}, 1000)
    with world.acting(None):
        world.disasters.kill(node)
    node.frozen_until = float("inf")
    world.clock.now += 3
    elect(world, 2, 3)
    client.send({0: 1})
    node.frozen_until = 0.0
    with world.acting(node):
        node.start()
        assert node.broker is not None
        for _ in range(2):
            world.clock.now += 3
            node.broker._run()


def send_that_was_replicated_in_part(world: StackWorld) -> None:
    """A send has three batches. A follower has one of them when the leader is killed and the follower is elected."""
    (client, _), node = world.clients, world.nodes[1]

    def kill() -> None:
        with world.acting(None):
            world.disasters.kill(node)
        node.frozen_until = world.clock.now + 30
        elect(world, 2, 3)

    with first(world, lambda: world.run(world.nodes[2]), kill):
        client.send({0: 3})


def records_that_compress_well(world: StackWorld) -> None:
    """Small files hold records that are larger than a segment when uncompressed."""
    (client, _) = world.clients
    client.padding = b"." * 200_000
    for _ in range(8):
        client.send({0: 1})


def commit_into_a_hole(world: StackWorld) -> None:
    """A producer freezes in the middle of its commit until the log has been cleaned up beyond that version. Its commit
    lands in the hole. Another producer, which has read the former commit of that version, sends once more."""
    late, other = world.clients
    busy = StackProducer("producer-3", world.cluster.root.uri)
    world.clients.append(busy)
    log = world.nodes[1].root.child(LOG.name).uri
    commit, held = world.faults.commit, [late]

    def stands_still(uri: str, put: Callable[[], bool]) -> bool:
        if uri == log and held:
            held.clear()
            other.send({0: 1}, 1)
            other.frozen_until = float("inf")
            for seconds in (0, 7_200, 0):
                world.clock.now += seconds
                for _ in range(_COMMITS):
                    world.go_on()
                    busy.send({0: 1})
        return commit(uri, put)

    late.send({1: 1})
    with Changes() as changes:
        changes.change("storage.delta.delta_log", "CHECKPOINT_COMMITS", _COMMITS)
        changes.change(world.faults, "commit", stands_still)
        acknowledged = [late.send({0: 1}, 7_500_000)]
        other.frozen_until = 0.0
        acknowledged.append(other.send({0: 1}, 60_000))
    if not all(acknowledged):
        raise Violation("the_cluster_heals", f"of the producers that were behind, {acknowledged} can send")
