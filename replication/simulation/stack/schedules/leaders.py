"""Directed histories of leaders: whose word counts for the ISR and the high watermark, and who may write a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakelog.replication.clients import sender
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.simulation.events import Violation
from lakelog.replication.simulation.stack.directing import (
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
from lakelog.replication.simulation.stack.one_thread import Changes
from lakelog.replication.simulation.stack.producers import Interrupted
from lakelog.replication.simulation.stack.world import StackWorld
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

_LAG_SECONDS = 40  # after which a follower that does nothing is out of sync


def _records_of_the_first_leader(world: StackWorld) -> None:
    """Broker 3 has a record that its leader 1 has, and 2 has not; then 1 is gone, and 3 stands still."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(two)
    with only(world, three):
        client.send({0: 1}, 1000)
    freeze(three)
    its_own_thread(world, two)  # it has seen that the other one lived
    kill(world, one)
    thaw(two)


def row_of_an_older_leadership(world: StackWorld) -> None:
    """A member of the ISR stands still with records of the leader before, at the offsets of other ones of the next."""
    (_, other), (_, two, three) = world.clients, world.nodes.values()
    _records_of_the_first_leader(world)
    elect(world, 2, 3)
    with only(world, two):
        other.send({0: 1}, 5000)
    kill(world, two)
    thaw(three)
    elect(world, 3)


def row_of_one_that_has_left(world: StackWorld) -> None:
    """As before, but it was taken for dead, and has left the ISR; then it shows that it lives, and does no more."""
    (_, other), two = world.clients, world.nodes[2]
    _records_of_the_first_leader(world)
    wait_for(world, without(world, 3), 2)
    with only(world, two):
        other.send({0: 1}, 5000)
    wait_for(world, lambda: is_in_sync(world, 3, two), 2, 3)
    kill(world, two)
    try_to_elect(world, 3)


def join_before_the_high_watermark_is_known(world: StackWorld) -> None:
    """A new leader does not know yet how much is committed, and a follower has less than that."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(three)
    wait_for(world, without(world, 3), 1, 2)
    two.fetches_all = True
    with only(world, two, one):
        client.send({0: 3})
    kill(world, one)
    elect(world, 2)
    show_life(world, 2, 3)
    thaw(three)
    with meanwhile(ReplicaManager, "lead", lambda: world.run(three)):
        world.run(two)
    kill(world, two)
    try_to_elect(world, 3)


def shrink_without_an_answer(world: StackWorld) -> None:
    """A leader cannot tell what has become of a change of the ISR, and who was to leave is elected."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(three)
    with only(world):
        client.send({0: 1}, 1000)
    world.clock.now += _LAG_SECONDS

    def is_away(*_: object) -> None:
        raise KafkaStorageException("nobody has answered")

    with Changes() as changes, only(world, two, one):
        changes.change(MetadataTable, "alter_partitions", is_away)
        client.send({0: 1}, 5000)
    kill(world, one)
    kill(world, two)
    thaw(three)
    elect(world, 3)


def change_of_the_isr_by_one_that_was_deposed(world: StackWorld) -> None:
    """A leader is about to write who is in sync, and does so when another one leads and has got records."""
    (client, other), (one, two, three) = world.clients, world.nodes.values()
    freeze(two, three)
    with only(world):
        client.send({0: 1}, 1000)
    world.clock.now += _LAG_SECONDS

    def depose() -> None:
        thaw(two, three)
        elect(world, 2, 3)
        with only(world, three, two), world.acting(other):
            other.send({0: 1}, 5000)

    with meanwhile(MetadataTable, "alter_partitions", depose):
        world.run(one)
    kill(world, two)
    freeze(one, three)
    elect(world, 1, 3)


def leader_that_was_follower(world: StackWorld) -> None:
    """Who leads next has told before how much is committed, and goes on from there, as long as others say nothing."""
    (client, _), (one, two, _) = world.clients, world.nodes.values()
    client.send({0: 3})
    world.calm()
    partition = registration(world).topic_id_partition
    before = ReplicaTable.open(two.root).replicas[partition].high_watermark
    kill(world, one)
    elect(world, 2, 3)
    world.run(two)
    after = ReplicaTable.open(two.root).replicas[partition].high_watermark
    if after < before:
        raise Violation("what_is_committed_stays", f"high watermark {before} became {after} as broker 2 began to lead")


def role_without_an_answer(world: StackWorld) -> None:
    """Who is to lead writes so to its log; that does not arrive, and nobody says so."""
    one, two, _ = world.nodes.values()
    kill(world, one)
    elect(world, 2, 3)
    commit, log, lost = world.faults.commit, two.root.child(LOG.name).uri, [OSError("connection reset")]

    def fails(uri: str, put: Callable[[], bool]) -> bool:
        if uri == log and lost:
            raise lost.pop()
        return commit(uri, put)

    with Changes() as changes:
        changes.change(world.faults, "commit", fails)
        world.run(two)


def process_that_is_over(world: StackWorld) -> None:
    """A broker is started once more; its new process leads when the one before it, which nobody has ended, goes on."""
    one, two, three = world.nodes.values()
    older = one.broker
    assert older is not None
    with world.acting(one):
        one.start()
    world.calm()
    freeze(two, three)
    elect(world, 1)
    world.run(one)
    with world.acting(one):
        older._run()


def append_to_one_that_follows(world: StackWorld) -> None:
    """A producer is slow to append to a broker that has led, and in the next leader's history other records come."""
    (client, other), (one, two, three) = world.clients, world.nodes.values()
    freeze(three)
    wait_for(world, without(world, 3), 1, 2)

    def depose() -> None:
        freeze(one)
        elect(world, 2)
        wait_for(world, without(world, 1), 2)
        thaw(one)
        wait_for(world, lambda: is_in_sync(world, 1, one, two), 1, 2)

    append, first = sender.append, [depose]

    def is_slow(*given: Any) -> Any:
        if not first:
            raise Interrupted  # before it sends the same again
        first.pop()()
        return append(*given)

    with Changes() as changes, only(world):
        changes.change(sender, "append", is_slow)
        client.send({0: 1}, 1000)
    with only(world, one, two):
        other.send({0: 1}, 5000)
    kill(world, two)
    try_to_elect(world, 1)
