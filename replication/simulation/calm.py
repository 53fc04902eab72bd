"""The end of a history without faults: everybody runs, and the cluster must come to rest with all replicas in sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.protocol.partition_registration import PartitionRegistration
from replication.simulation.controller import Controller
from replication.simulation.events import CRASH, RESUME, START, Event, Violation

if TYPE_CHECKING:
    from replication.simulation.world import World

_ROUNDS = 1_200  # steps of each thread, at most
_LOOKS = 20  # of them between two looks at who runs and who leads


def check_that_it_heals(world: World) -> None:
    """Raises Violation if it does not, within a bounded number of steps."""
    ill = "nothing has happened yet"
    for number in range(_ROUNDS):
        if number % _LOOKS == 0:
            _let_everybody_run(world)
            _elect(world, number)
        threads = [thread for process in list(world.processes.values()) for thread in process.threads()]
        for thread in threads:
            world.apply(Event(thread, salt=number * 61 + 7))
        found = _ill(world)
        if found is None:
            return
        ill = found
    raise Violation("the_cluster_heals", ill)


def _let_everybody_run(world: World) -> None:
    """One process a broker: the newest, if there is one."""
    for broker in world.broker_ids:
        own = [name for name, process in world.processes.items() if process.broker_id == broker]
        for name in own[:-1]:
            world.apply(Event(name, CRASH))
        newest = world.processes[own[-1]] if own else None
        if newest is None or newest.is_shutting_down:
            if newest is not None:
                world.apply(Event(newest.name, CRASH))
            world.apply(Event(f"broker-{broker}", START))
        else:
            world.apply(Event(newest.name, RESUME))


def _elect(world: World, salt: int) -> None:
    """A controller elects wherever there is no leader."""
    controller = Controller(world, f"controller-{salt + 10}")
    for _ in controller.calm():
        controller.turn = Event(controller.name)
        world.step += 1


def _ill(world: World) -> str | None:
    """What is not in order yet; None if all is."""
    for registration in world.metadata.at(world.metadata.newest).partitions.values():
        fault = _fault(world, registration)
        if fault is not None:
            return f"{registration.topic_id}-{registration.partition}: {fault}; {registration}"
    return None


def _fault(world: World, registration: PartitionRegistration) -> str | None:
    partition, leader = registration.topic_id_partition, registration.leader
    if leader not in registration.replicas or set(registration.isr) != set(registration.replicas):
        return f"leader {leader}, ISR {registration.isr}"
    ends = {broker: world.witness.log(broker, partition).log_end_offset for broker in registration.replicas}
    row = world.replicas[leader].at(world.replicas[leader].newest).replicas.get(partition)
    if len(set(ends.values())) > 1 or row is None or row.leader_epoch != registration.leader_epoch:
        return f"log ends {ends}"
    return None if row.high_watermark == ends[leader] else f"HW {row.high_watermark}, log ends {ends}"
