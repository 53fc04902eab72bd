"""Replicas are repaired while leaders add them to the ISR, and while processes die: no acknowledged record is lost."""

import contextlib

import pytest

from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.log.repair import note_repairs
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.schemas import LOG
from lakelog.verification.simulation.stack.directing import elect
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.stack_history import check, check_that_it_goes_on
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


def note(world):
    """Notes wrong records in each follower's log from a random offset on, as an operator does at any time."""
    with world.acting(None):
        for node in world.nodes.values():
            with contextlib.suppress(LakelogException):  # a root that is away or damaged gets no note
                log = ReplicaLog.open(node.root.child(LOG.name))
                known = {p: log.current().known(p) for p in world.partitions()}
                wrong = {p: (k.role.leader_epoch, world.rng.randint(0, k.log_end_offset)) for p, k in known.items()}
                note_repairs(log, wrong, "operator")


@pytest.mark.parametrize("kills", range(8))
def test_ol_01_noted_records_are_fetched_again_whenever_the_broker_dies(world, kills):
    """Broker, controllers and leader run in turn. The broker dies after so many rounds of its repair."""
    (client, _), leader, follower = world.clients, world.nodes[1], world.nodes[2]
    assert all(client.send({0: 1}) for _ in range(3))
    world.calm()
    with world.acting(None):
        log = ReplicaLog.open(follower.root.child(LOG.name))
        epoch = log.current().known(P0).role.leader_epoch
        assert note_repairs(log, {P0: (epoch, 1)}, "operator") == [P0]
    for _ in range(kills):
        for actor in (follower, *world.controllers, leader):
            world.clock.now += 0.2
            world.run(actor)
    with world.acting(None):
        world.disasters.kill(follower)
    world.calm()
    with world.acting(None):
        assert ReplicaLog.open(follower.root.child(LOG.name)).current().to_repair == frozenset()
        commits = [read_commit(log.root, version) for version in range(last_version(log.root) + 1)]
    assert any(commit.info.get("why") == "repair" for commit in commits)
    check(world)


@pytest.mark.parametrize("seed", range(2))
def test_ol_01_notes_at_any_time_lose_no_acknowledged_record(seed):
    """Processes die, roots fail, and leaders change between any two commits of a repair."""
    with Changes() as changes:
        world = StackWorld(seed, changes)
        world.calm()
        for part in range(4):
            world.storm(range(20 * part, 20 * part + 20))
            note(world)
        world.storm(range(80, 120))
        world.calm()
        check(world)
        check_that_it_goes_on(world)
