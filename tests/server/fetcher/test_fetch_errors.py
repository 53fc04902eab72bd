"""The error in a follower's row while it cannot fetch. Without Spark: it reads all from the leader's log."""

import pytest

from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.clock import Clock
from tests.hanging import raises
from tests.server.fetcher.test_fetch_runner import World
from tests.storage.logs import P0, P1, fill, leo


@pytest.fixture
def world(root):
    clock = Clock()
    made = World(root, clock=clock, looks=False)
    made.clock = clock
    return made


def rows_of(world, partition):
    """The rows of a partition that were published since the last call."""
    told = [(rows[partition].state, rows[partition].error) for _, rows in world.told]
    world.told.clear()
    return told


def test_ft_15_a_gap_that_the_leader_cannot_close_stays_in_the_row(world):
    """Each attempt finds as little: between two of them the row must not say that all is well."""
    fill(world.leader, P0, 3, 3)
    fill(world.leader, P1, 3)
    world.publish()
    first = world.leader.current().segments[world.leader.current().known(P0).batches[0].segment]
    world.leader._log.commit({"why": "nonsense"}, removes=[first.file])
    error = "OffsetOutOfRangeException: the leader has nothing at offset 0"
    for _ in range(3):
        for _ in range(3):
            world.fetch()
        world.tell("kept up")
        world.clock.now += 60
    told = rows_of(world, P0)
    began = next(number for number, (_, said) in enumerate(told) if said)
    assert {said for _, said in told[began:]} == {error}
    assert (told[-1][0], leo(world.follower), leo(world.follower, P1)) == (FollowerState.DELAYED, 0, 3)


def test_ft_06_ft_15_the_error_of_a_failed_root_stays_in_the_row_until_a_fetch_succeeds(world, monkeypatch):
    fill(world.leader, P0, 3)
    world.publish()
    world.fetch()
    rows_of(world, P0)
    with monkeypatch.context() as patch:
        patch.setattr(ReplicaTable, "poll", raises(OSError("away")))
        assert world.fetch() is False
    world.clock.now += 60
    assert world.states.end_delays()
    world.tell("kept up")
    assert {error for _, error in rows_of(world, P0)} == {"OSError: away"}
    world.fetch()
    assert rows_of(world, P0)[-1] == (FollowerState.FETCHING, None)
