"""A broken replica is repaired just before its leader adds it to the ISR: no acknowledged record is lost."""

import contextlib

import pytest

from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.verification.simulation.stack.directing import elect
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.stack_history import check
from lakelog.verification.simulation.stack.stack_world import TOPIC_ID, StackWorld

P0 = TopicIdPartition(TOPIC_ID, 0)


@pytest.fixture
def world():
    with Changes() as changes:
        made = StackWorld(0, changes)
        made.calm()
        yield made


def log_of(node):
    return node.broker.session.replica_manager._log


def rot(world, node):
    """Damages a file of the partition, and lets its broker find out."""
    with world.acting(None):
        log = log_of(node)
        name = log.refresh().known(P0).batches[0].segment
        log.root.write(name, b"x" * log.root.sizes([name])[0])
        log.report_broken(name, f"{name}: rotten")


@contextlib.contextmanager
def before_it_joins(member, act):
    """Runs once, when a leader has decided to add a broker to the ISR and has not committed that yet."""
    real, due = MetadataCache.alter_partitions, [act]

    def alter(cache, changes, who):
        found = list(changes)
        if due and any(c.topic_id_partition == P0 and member in c.joiners for c in found):
            due.pop()()
        return real(cache, found, who)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetadataCache, "alter_partitions", alter)
        yield due


def until(world, condition, *actors):
    """Runs rounds of these processes until a condition holds."""
    for _ in range(100):
        for actor in actors:
            world.clock.now += 0.2
            world.run(actor)
            if condition():
                return
    raise AssertionError("it did not come so far")


def test_ol_01_is_05_what_is_about_to_join_the_isr_is_not_emptied_in_it(world):
    """The leader has decided on an older row. An emptied follower in the ISR could be elected."""
    (client, _), leader, follower = world.clients, world.nodes[1], world.nodes[2]
    assert all(client.send({0: 1}) for _ in range(3))
    world.calm()
    follower.frozen_until = world.nodes[3].frozen_until = float("inf")
    until(world, lambda: world.partitions()[P0].isr == (1,), leader, *world.controllers)
    follower.frozen_until = 0.0

    def break_and_repair():
        rot(world, follower)
        for _ in range(3):
            world.run(follower)

    with before_it_joins(2, break_and_repair) as due:
        until(world, lambda: not due, leader, follower)
    if 2 in world.partitions()[P0].isr:
        with world.acting(None):
            world.disasters.kill(leader)
        leader.frozen_until = float("inf")
        world.clock.now += 3
        elect(world, 2)
    world.calm()
    check(world)
