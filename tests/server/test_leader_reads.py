"""A leader's view of its followers while the root of one hangs."""

import threading
import time
from types import SimpleNamespace

import pytest

from lakelog.replication.errors import FencedClusterRootException
from lakelog.replication.protocol.rounds.leader_round import ReadFollowerRows
from lakelog.replication.server import follower_rows
from lakelog.replication.server.replica_manager import LeaderRoundReads
from tests.clock import Clock
from tests.hanging import Hanging
from tests.processes import wait_until
from tests.storage.logs import P0, new_log


class Table:
    """A table of rows whose last poll is so many seconds old. Another thread refreshes it right after the rows were
    read."""

    def __init__(self, read, max_staleness):
        self._read, self.polled_at = read, time.monotonic() - max_staleness

    def poll(self, _):
        pass

    @property
    def replicas(self):
        found = self._read()
        self.polled_at = time.monotonic()
        return found


class World:
    """Brokers 2 and 3 follow, and each has a row."""

    def __init__(self, root):
        self.ages = {}
        self.clock, self.reads = Clock(), {2: lambda: {P0: "row of 2"}, 3: lambda: {P0: "row of 3"}}
        self.woken = threading.Event()
        self.newer = set()
        cache = SimpleNamespace(
            replica_table=self.table,
            listener=SimpleNamespace(wake=self.woken.set),
            check_generation=self.check_generation,
        )
        self.view = LeaderRoundReads(1, new_log(root, P0), cache, 10_000, self.clock)

    def table(self, broker):
        return Table(self.reads[broker], self.ages.get(broker, 0.0))

    def check_generation(self, broker):
        if broker in self.newer:
            raise FencedClusterRootException("recovered elsewhere")

    def poll(self):
        self.clock.now += 1
        return self.view.follower_rows(ReadFollowerRows((2, 3)))

    def looked_now(self):
        return {broker for broker, began_at in self.poll().began_at.items() if began_at == self.clock.now}


@pytest.fixture
def world(root, monkeypatch):
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 30.0)
    return World(root)


def test_is_04_ol_01_rows_come_with_the_time_at_which_their_read_began(world, monkeypatch):
    """The rows of a hanging root are older: they count for the HW, but add no follower to the ISR."""
    assert world.looked_now() == {2, 3}
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 0.05)
    hanging = world.reads[2] = Hanging(lambda: {P0: "row of 2"})
    wait_until(lambda: world.looked_now() == {3}, "a poll that is not waited for")
    assert world.poll().rows[2] == {P0: "row of 2"}, "that it counts for the HW does no harm"
    assert not world.woken.is_set()
    hanging.let_go()
    assert world.woken.wait(30), "its rows are for the next round, which begins at once"
    wait_until(lambda: world.looked_now() == {2, 3}, "a look at broker 2 that began since")


def test_a_leader_ends_whose_follower_belongs_to_a_newer_generation_of_the_cluster_root(world):
    """A follower whose rows cannot be read is only left out."""
    world.newer.add(3)
    with pytest.raises(FencedClusterRootException):
        world.poll()


def test_is_04_rows_of_an_earlier_poll_of_this_process_come_with_its_time(world):
    world.ages = {2: 200.0}
    began_at = world.poll().began_at
    assert world.clock.now - 200 <= began_at[2] < world.clock.now - 100
    assert began_at[3] == world.clock.now
