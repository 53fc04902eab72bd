"""What directed histories are made of: who stands still, who goes on, and what happens in the middle of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.simulation.events import Violation
from lakelog.replication.simulation.stack.one_thread import Changes
from lakelog.replication.simulation.stack.processes import Process, StackBroker
from lakelog.replication.simulation.stack.world import StackWorld

_PATIENCE = 60  # looks of the controllers


def freeze(*processes: Process) -> None:
    """They get no steps until they are thawed, and show no life."""
    for process in processes:
        process.frozen_until = inf


def thaw(*processes: Process) -> None:
    """They get steps again."""
    for process in processes:
        process.frozen_until = 0.0


def kill(world: StackWorld, node: StackBroker) -> None:
    """Ends a broker, which is not started again before the calm."""
    with world.acting(None):
        world.disasters.kill(node)
    freeze(node)


def its_own_thread(world: StackWorld, node: StackBroker) -> None:
    """A round of the broker's own thread, and none of its fetchers."""
    assert node.broker is not None
    with world.acting(node):
        node.broker._run()


@contextmanager
def only(world: StackWorld, *actors: Process) -> Iterator[None]:
    """While a client waits in the block these go on, each once, and nobody else."""

    def go_on() -> None:
        for actor in actors:
            world.run(actor)

    with Changes() as changes:
        changes.change(world, "interrupt", go_on)
        yield


@contextmanager
def first(world: StackWorld, *work: Callable[[], object]) -> Iterator[None]:
    """When a client waits in the block, one of these is done each time, in order; after the last, anybody goes on."""
    todo, anybody = iter(work), world.interrupt

    with Changes() as changes:
        changes.change(world, "interrupt", lambda: next(todo, anybody)())
        yield


@contextmanager
def meanwhile(owner: object, name: str, work: Callable[[], object]) -> Iterator[None]:
    """In the block `work` is done once, before the first call of what has this name in a module or a class."""
    shipped, todo = getattr(owner, name), [work]

    def instead(*given: Any, **named: Any) -> Any:
        if todo:
            todo.pop()()
        return shipped(*given, **named)

    with Changes() as changes:
        changes.change(owner, name, instead)
        yield


def wait_for(
    world: StackWorld, what: Callable[[], bool], *numbers: int, offices: Sequence[Process] | None = None
) -> bool:  # fmt: skip
    """These brokers show that they live, and do nothing else, while the controllers look, or those of `offices`; tells
    whether it came to pass."""
    for _ in range(_PATIENCE):
        world.clock.now += 0.5
        for number in numbers:
            broker = world.nodes[number].broker
            assert broker is not None
            broker._beat()
        for office in world.offices if offices is None else offices:
            world.run(office)
        if what():
            return True
    return False


def show_life(world: StackWorld, *numbers: int) -> None:
    """Each of these brokers has a heartbeat, and the controllers look."""
    wait_for(world, lambda: True, *numbers)


def elect(world: StackWorld, *numbers: int) -> None:
    """Those brokers lead everything. Raises Violation if the controllers do not elect them, though they live."""
    if not wait_for(world, lambda: all(r.leader in numbers for r in world.partitions().values()), *numbers):
        raise Violation("the_cluster_heals", f"none of {numbers} was elected")


def try_to_elect(world: StackWorld, *numbers: int) -> None:
    """Those brokers lead everything if the controllers may elect them."""
    wait_for(world, lambda: all(r.leader in numbers for r in world.partitions().values()), *numbers)


def without(world: StackWorld, number: int) -> Callable[[], bool]:
    """Whether a broker has left every ISR."""
    return lambda: all(number not in r.isr for r in world.partitions().values())


def registration(world: StackWorld, number: int = 0) -> PartitionRegistration:
    """What the metadata has of a partition."""
    return next(r for p, r in world.partitions().items() if p.partition == number)


def is_in_sync(world: StackWorld, number: int, *actors: Process) -> bool:
    """Whether a broker is in the ISR once these processes have gone on."""
    for actor in actors:
        world.run(actor)
    return number in registration(world).isr
