"""Building blocks of directed histories: freeze, kill and run processes, and interrupt them in the middle of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.stack_processes import Process, StackBroker
from lakelog.verification.simulation.stack.stack_world import StackWorld

_PATIENCE = 60  # rounds of the controllers


def freeze(*processes: Process) -> None:
    """Freezes processes: until they are thawed they get no steps and send no heartbeats."""
    for process in processes:
        process.frozen_until = inf


def thaw(*processes: Process) -> None:
    """Lets frozen processes run again."""
    for process in processes:
        process.frozen_until = 0.0


def kill(world: StackWorld, node: StackBroker) -> None:
    """Kills a broker. It is not started again before the calm."""
    with world.acting(None):
        world.disasters.kill(node)
    freeze(node)


def its_own_thread(world: StackWorld, node: StackBroker) -> None:
    """Runs one round of the broker's own thread, and none of its fetchers."""
    assert node.broker is not None
    with world.acting(node):
        node.broker._run()


@contextmanager
def only(world: StackWorld, *actors: Process) -> Iterator[None]:
    """In the block, a waiting client lets only these processes run, one step each."""

    def go_on() -> None:
        for actor in actors:
            world.run(actor)

    with Changes() as changes:
        changes.change(world, "interrupt", go_on)
        yield


@contextmanager
def first(world: StackWorld, *work: Callable[[], object]) -> Iterator[None]:
    """In the block, each wait of a client makes the next of these calls. After the last one any process runs."""
    todo, anybody = iter(work), world.interrupt

    with Changes() as changes:
        changes.change(world, "interrupt", lambda: next(todo, anybody)())
        yield


@contextmanager
def meanwhile(owner: object, name: str, work: Callable[[], object]) -> Iterator[None]:
    """In the block, runs `work` once, just before the first call of `owner.name`. `owner` is a module or a class."""
    shipped, todo = getattr(owner, name), [work]

    def instead(*given: Any, **named: Any) -> Any:
        if todo:
            todo.pop()()
        return shipped(*given, **named)

    with Changes() as changes:
        changes.change(owner, name, instead)
        yield


def wait_for(
    world: StackWorld, what: Callable[[], bool], *numbers: int, controllers: Sequence[Process] | None = None
) -> bool:  # fmt: skip
    """Waits until `what` is true, and returns whether it became true. Meanwhile only the controllers run, or those in
    `controllers`; the brokers `numbers` send heartbeats and do nothing else."""
    for _ in range(_PATIENCE):
        world.clock.now += 0.5
        for number in numbers:
            broker = world.nodes[number].broker
            assert broker is not None
            broker._beat()
        for controller in world.controllers if controllers is None else controllers:
            world.run(controller)
        if what():
            return True
    return False


def show_life(world: StackWorld, *numbers: int) -> None:
    """Each of these brokers sends a heartbeat, and the controllers see it."""
    wait_for(world, lambda: True, *numbers)


def elect(world: StackWorld, *numbers: int) -> None:
    """Waits until these brokers lead all partitions. Raises Violation if the controllers do not elect them."""
    if not wait_for(world, lambda: all(r.leader in numbers for r in world.partitions().values()), *numbers):
        raise Violation("the_cluster_heals", f"none of {numbers} was elected")


def try_to_elect(world: StackWorld, *numbers: int) -> None:
    """As `elect`, but without a Violation."""
    wait_for(world, lambda: all(r.leader in numbers for r in world.partitions().values()), *numbers)


def without(world: StackWorld, number: int) -> Callable[[], bool]:
    """A condition for `wait_for`: the broker is in no ISR."""
    return lambda: all(number not in r.isr for r in world.partitions().values())


def registration(world: StackWorld, number: int = 0) -> PartitionRegistration:
    """A partition's current row in the metadata."""
    return next(r for p, r in world.partitions().items() if p.partition == number)


def is_in_sync(world: StackWorld, number: int, *actors: Process) -> bool:
    """Runs one step of each of these processes, and returns whether the broker is then in the ISR of partition 0."""
    for actor in actors:
        world.run(actor)
    return number in registration(world).isr
