"""Directed histories of leaders: which rows count for the ISR and the high watermark, and who may write a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakelog.replication.clients import send_executor
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.simulation.history_events import Violation
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
from lakelog.verification.simulation.stack.stack_producers import Interrupted
from lakelog.verification.simulation.stack.stack_world import StackWorld

_LAG_SECONDS = 40  # after which a follower that does nothing is out of sync


def _records_of_the_first_leader(world: StackWorld) -> None:
    """Brokers 1, the leader, and 3 have a record that 2 lacks. Then 1 dies and 3 freezes."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(two)
    with only(world, three):
        client.send({0: 1}, 1000)
    freeze(three)
    its_own_thread(world, two)  # it has read broker 3's last heartbeat
    kill(world, one)
    thaw(two)


def row_of_an_older_leadership(world: StackWorld) -> None:
    """A frozen member of the ISR has records of the former leader. The next leader has others at these offsets."""
    (_, other), (_, two, three) = world.clients, world.nodes.values()
    _records_of_the_first_leader(world)
    elect(world, 2, 3)
    with only(world, two):
        other.send({0: 1}, 5000)
    kill(world, two)
    thaw(three)
    elect(world, 3)


def row_of_one_that_has_left(world: StackWorld) -> None:
    """As before, but the frozen broker has left the ISR. Then it sends heartbeats and does nothing else."""
    (_, other), two = world.clients, world.nodes[2]
    _records_of_the_first_leader(world)
    wait_for(world, without(world, 3), 2)
    with only(world, two):
        other.send({0: 1}, 5000)
    wait_for(world, lambda: is_in_sync(world, 3, two), 2, 3)
    kill(world, two)
    try_to_elect(world, 3)


def join_before_the_high_watermark_is_known(world: StackWorld) -> None:
    """A new leader does not know the high watermark yet, and a follower's log ends below it."""
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
    """A leader shrinks the ISR and gets no answer. Then the follower that was to leave is elected."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(three)
    with only(world):
        client.send({0: 1}, 1000)
    world.clock.now += _LAG_SECONDS

    def is_away(*_: object) -> None:
        raise KafkaStorageException("no answer")

    with Changes() as changes, only(world, two, one):
        changes.change(MetadataTable, "alter_partitions", is_away)
        client.send({0: 1}, 5000)
    kill(world, one)
    kill(world, two)
    thaw(three)
    elect(world, 3)


def change_of_the_isr_by_one_that_was_deposed(world: StackWorld) -> None:
    """A leader is about to shrink the ISR. Before it commits, another broker is elected and gets records."""
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
    """A follower that knows the high watermark becomes leader, and must not begin with a lower one."""
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
    """A new leader's change of role does not arrive at its log, and gets no answer."""
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
    """A second process of a broker is started and leads. Then the first process, which was not ended, goes on."""
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
    """A producer appends late, to a broker that now follows. The next leader then gets other records."""
    (client, other), (one, two, three) = world.clients, world.nodes.values()
    freeze(three)
    wait_for(world, without(world, 3), 1, 2)

    def depose() -> None:
        freeze(one)
        elect(world, 2)
        wait_for(world, without(world, 1), 2)
        thaw(one)
        wait_for(world, lambda: is_in_sync(world, 1, one, two), 1, 2)

    append, first = send_executor.append, [depose]

    def is_slow(*given: Any) -> Any:
        if not first:
            raise Interrupted  # so that it does not retry
        first.pop()()
        return append(*given)

    with Changes() as changes, only(world):
        changes.change(send_executor, "append", is_slow)
        client.send({0: 1}, 1000)
    with only(world, one, two):
        other.send({0: 1}, 5000)
    kill(world, two)
    try_to_elect(world, 1)
