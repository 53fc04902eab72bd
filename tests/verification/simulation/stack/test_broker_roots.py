"""The root of a running broker becomes an older copy of itself, or an empty one, and the broker is not restarted."""

import pytest

from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import format_broker
from lakelog.verification.simulation.stack import stack_history
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.stack_world import StackWorld

P0 = TopicIdPartition("flights-id", 0)
ROUNDS = 200


@pytest.fixture
def world():
    with Changes() as changes:
        made = StackWorld(0, changes)
        made.calm()
        assert made.clients[0].send({0: 2})
        made.calm()
        yield made


def put_back(world, node, before):
    node.root.delete_folder()
    world.store.folders.update({folder: dict(files) for folder, files in before.items()})


def format_anew(world, node, _):
    node.root.delete_folder()
    format_broker(node.root, world.cluster.cluster_id, node.number)


def files_of(world, node):
    folders = world.store.folders.items()
    return {folder: dict(files) for folder, files in folders if folder.startswith(f"{node.root.uri}/")}


def log_epoch(world, node):
    with world.acting(None):
        return world.cluster.refresh_brokers()[node.number].log_epoch


def go_on_until(world, is_reached, *out):
    """Runs the servers that are not `out` until it is reached."""
    for _ in range(ROUNDS):
        for actor in world.servers():
            world.clock.now += 0.2
            if actor not in out:
                world.run(actor)
        if is_reached():
            return
    pytest.fail(f"not reached after {ROUNDS} rounds: {world.differences()}")


@pytest.mark.parametrize(
    ("is_leader", "lose"),
    [(True, put_back), (False, put_back), (False, format_anew)],
    ids=["older, leader", "older, follower", "empty, follower"],
)
def test_li_04_a_root_that_goes_back_under_its_running_broker_loses_no_record(world, lose, is_leader):
    """Not even if the leader is down meanwhile. The broker registers as one that has lost its log."""
    registered = world.partitions()[P0]
    leader, follower = (world.nodes[number] for number in registered.replicas[:2])
    loser = leader if is_leader else follower
    before, epoch = files_of(world, loser), log_epoch(world, loser)
    for _ in range(3):
        assert world.clients[0].send({0: 1})
    world.calm()
    process = loser.broker
    with world.acting(None):
        lose(world, loser, before)
    if not is_leader:
        leader.kill()
    go_on_until(world, lambda: log_epoch(world, loser) > epoch, *([] if is_leader else [leader]))
    assert loser.broker is process, "it goes on by itself"
    world.calm()
    stack_history.check(world)


def test_li_04_a_root_that_has_grown_again_since_it_went_back_is_noticed_too(world):
    """Producers have appended to the older copy before the broker polls: it has as many versions as before."""
    registered = world.partitions()[P0]
    leader = world.nodes[registered.leader]
    before, epoch = files_of(world, leader), log_epoch(world, leader)
    assert world.clients[0].send({0: 1})
    world.calm()
    with world.acting(None):
        put_back(world, leader, before)
    for _ in range(6):
        world.clients[1].send({0: 1})
    go_on_until(world, lambda: log_epoch(world, leader) > epoch)
    world.calm()
    stack_history.check(world)
