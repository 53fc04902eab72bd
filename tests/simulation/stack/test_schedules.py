"""Each of five mistakes that lost or doubled acknowledged records is found when it is put back.

All five are found here by a directed schedule of the world that the random test uses: a directed one takes two seconds
and finds the mistake each time. Each schedule is also run as the code is shipped, and then finds nothing.
"""

import pytest

from replication.simulation.events import Violation
from replication.simulation.stack import criticals
from replication.simulation.stack.invariants import check
from replication.simulation.stack.one_thread import Changes
from replication.simulation.stack.processes import Interrupted
from replication.simulation.stack.world import StackWorld
from tests.storage.answers import lose_an_answer

SHIPPED = ()


class Schedule:
    """Says who goes on while a producer waits: first those that are given, in their order, then anybody."""

    def __init__(self, world, *first):
        self._world, self._first, self._real = world, list(first), world.interrupt

    def __enter__(self):
        self._world.interrupt = self._next

    def __exit__(self, *_):
        self._world.interrupt = self._real

    def _next(self):
        if self._first:
            self._first.pop(0)()
        else:
            self._real()


def elected(world, *numbers):
    """These brokers show that they live, and fetch nothing, until the controllers have made leaders of them."""
    for _ in range(60):
        world.clock.now += 0.5
        for number in numbers:
            world.nodes[number].broker._beat()
        for office in world.offices:
            world.run(office)
        if all(r.leader in numbers for r in world.partitions().values()):
            return
    raise AssertionError("nobody was elected")


def interrupted_send(world):
    """1: a cell of a notebook is stopped before it knows that its records have landed; the next one sends others."""
    (client, _) = world.clients
    assert client.send({0: 1})
    with pytest.MonkeyPatch.context() as patch:
        lose_an_answer(patch, lambda _, cause: cause.get("why") == "append", error=Interrupted())
        assert not client.send({0: 2})
    assert client.send({0: 2})


def leader_without_its_end(world):
    """2: a leader loses power and the end of its log, is back at once, and gets records before a controller looks."""
    (client, other), node = world.clients, world.nodes[1]
    assert all(client.send({0: 1}) for _ in range(3))
    world.calm()
    with world.acting(None):
        world.disasters.cut_power(node, 2)
    assert world.disasters.damaged
    for office in world.offices:
        office.frozen_until = world.clock.now + 3
    node.frozen_until = 0.0
    for _ in range(2):
        world.run(node)
    brokers = [lambda n=n: world.run(n) for n in world.nodes.values()]
    with Schedule(world, *brokers * 4):
        other.send({0: 1})


def tail_of_a_deposed_leader(world):
    """3: a leader is deposed with records that nobody else has, and publishes while its fetcher truncates them."""
    (client, _), node = world.clients, world.nodes[1]
    for number in (2, 3):
        world.nodes[number].frozen_until = world.clock.now + 3
    assert not client.send({0: 2}, 1000)
    with world.acting(None):
        world.disasters.kill(node)
    node.frozen_until = float("inf")
    world.clock.now += 3
    elected(world, 2, 3)
    assert client.send({0: 1})
    node.frozen_until = 0.0
    with world.acting(node):
        node.start()
        for _ in range(2):
            world.clock.now += 3
            node.broker._run()


def send_that_was_replicated_in_part(world):
    """4: of three batches of a send a follower has one when their leader is killed, and it is elected."""
    (client, _), node = world.clients, world.nodes[1]

    def killed():
        with world.acting(None):
            world.disasters.kill(node)
        node.frozen_until = world.clock.now + 30
        elected(world, 2, 3)

    with Schedule(world, lambda: world.run(world.nodes[2]), killed):
        assert client.send({0: 3})


def records_that_compress_well(world):
    """5: files that are small on the disk hold records that are larger than a segment. Compaction comes to rest."""
    (client, _) = world.clients
    client.padding = b"." * 200_000
    assert all(client.send({0: 1}) for _ in range(8))
    maintenance = world.nodes[1].broker.session._maintenance
    maintenance._compact()
    files = len(maintenance._log.refresh().segments)
    maintenance._compact()
    version = maintenance._log.refresh().version
    maintenance._compact()
    if maintenance._log.refresh().version != version:
        raise Violation("compaction_comes_to_rest", "compaction goes on for ever")
    assert files < 8


SCHEDULES = [
    (interrupted_send, criticals.IDENTITY_KEPT, "nothing_acknowledged_is_lost"),
    (leader_without_its_end, criticals.LEADS_ON, "nothing_acknowledged_is_lost"),
    (tail_of_a_deposed_leader, criticals.LOG_READ_FIRST, "rows_tell_what_the_log_has"),
    (send_that_was_replicated_in_part, criticals.APPENDED_AGAIN, "nothing_is_there_twice"),
    (records_that_compress_well, criticals.WITHOUT_PROGRESS, "compaction_comes_to_rest"),
]


def carry_out(schedule, breaks):
    with Changes() as changes:
        for where, what in breaks:
            changes.change_at(where, what)
        world = StackWorld(0, changes, **{"log.segment.bytes": "65536"})
        world.calm()
        schedule(world)
        world.calm()
        check(world)


@pytest.mark.parametrize(("schedule", "changes", "found"), SCHEDULES, ids=lambda value: getattr(value, "__name__", ""))
def test_each_mistake_is_found_when_it_is_put_back(schedule, changes, found):
    with pytest.raises(Violation, match=found):
        carry_out(schedule, changes)


@pytest.mark.parametrize("schedule", [schedule for schedule, _, _ in SCHEDULES], ids=lambda value: value.__name__)
def test_nothing_is_found_as_it_is_shipped(schedule):
    carry_out(schedule, criticals.OVERTAKEN if schedule is tail_of_a_deposed_leader else SHIPPED)
