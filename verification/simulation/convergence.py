"""The end of a history: without further faults the cluster must converge. All replicas are in sync, no reassignment is
open, and deleted topics are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment import is_reassigning
from lakelog.verification.simulation.controller import SimulatedController
from lakelog.verification.simulation.events import CRASH, RESUME, START, Event, Violation

if TYPE_CHECKING:
    from lakelog.verification.simulation.world import World

_ROUNDS = 1_200  # the most steps of each thread
_LOOKS = 20  # steps between two checks of which processes run


def check_that_it_heals(world: World) -> None:
    """Raises Violation if the cluster does not converge within a limited number of steps."""
    ill = "nothing has happened yet"
    controller = _let_one_controller_run(world)
    for number in range(_ROUNDS):
        if number % _LOOKS == 0:
            _let_everybody_run(world)
        threads = [thread for process in list(world.processes.values()) for thread in process.threads()]
        for thread in [*threads, controller]:
            world.apply(Event(thread, salt=number * 61 + 7))
        found = _ill(world)
        if found is None:
            return
        ill = found
    raise Violation("the_cluster_heals", ill)


def _let_everybody_run(world: World) -> None:
    """Lets one process of each broker run: the newest one, or a new one."""
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


def _let_one_controller_run(world: World) -> str:
    """Restarts all controllers and lets only the first one run. It knows which brokers live, and gets elected."""
    world.is_calm = True
    names = [name for name, actor in world.others.items() if isinstance(actor, SimulatedController)]
    for name in names:
        world.apply(Event(name, CRASH))
    return names[0]


def _ill(world: World) -> str | None:
    """The first fault that remains, None if there is none."""
    requests = world.admin.at(world.admin.newest).requests
    going = [topic for topic in world.topics.at(world.topics.newest).topics.values() if topic.deleting]
    if requests or going:
        return f"requests {requests} wait, topics {going} are being deleted"
    for registration in world.metadata.at(world.metadata.newest).partitions.values():
        fault = _fault(world, registration)
        if fault is not None:
            return f"{registration.topic_id}-{registration.partition}: {fault}; {registration}"
    return _left_over(world)


def _left_over(world: World) -> str | None:
    """The first records of a partition that is gone, or on a broker that is not its replica."""
    partitions = world.metadata.at(world.metadata.newest).partitions
    for broker, table in world.logs.items():
        for partition, log in table.at(table.newest).partitions.items():
            found = partitions.get(partition)
            if log.batches and (found is None or broker not in found.replicas):
                return f"broker {broker} still has records of {partition}, which it is no replica of"
    return None


def _fault(world: World, registration: PartitionRegistration) -> str | None:
    partition, leader = registration.topic_id_partition, registration.leader
    if leader not in registration.replicas or set(registration.isr) != set(registration.replicas):
        return f"leader {leader}, ISR {registration.isr}"
    if is_reassigning(registration):
        return "is being moved"
    ends = {broker: world.checker.log(broker, partition).log_end_offset for broker in registration.replicas}
    row = world.replicas[leader].at(world.replicas[leader].newest).replicas.get(partition)
    if len(set(ends.values())) > 1 or row is None or row.leader_epoch != registration.leader_epoch:
        return f"log ends {ends}"
    return None if row.high_watermark == ends[leader] else f"HW {row.high_watermark}, log ends {ends}"
