"""What a leader looks at when one of its followers' roots hangs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from replication.protocol.partition_registration import PartitionRegistration
from replication.server import follower_rows
from replication.server.leader_view import LeaderView
from tests.clock import Clock
from tests.hanging import Hanging
from tests.processes import wait_until
from tests.storage.logs import P0, new_log

LED = PartitionRegistration("flights", "flights-id", 0, (1, 2, 3), 1, 0, (1,))


class World:
    """Broker 1 leads; brokers 2 and 3 follow, and each has a row."""

    def __init__(self, root):
        self.clock, self.reads = Clock(), {2: lambda: {P0: "row of 2"}, 3: lambda: {P0: "row of 3"}}
        registered = {b: SimpleNamespace(broker_epoch=b * 10) for b in (1, 2, 3)}
        cache = SimpleNamespace(
            brokers=lambda: registered, alive_brokers=lambda: {1, 2, 3}, min_isr=lambda _: 1, replica_table=self.table
        )
        self.view = LeaderView(1, new_log(root, P0), cache, 10_000, self.clock)

    def table(self, broker):
        return SimpleNamespace(refresh=lambda: None, replicas=self.reads[broker]())

    def look(self, registration):
        self.clock.now += 1
        return self.view.look([registration])[P0]


@pytest.fixture
def world(root, monkeypatch):
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 30.0)
    return World(root)


def test_is_04_ol_01_who_joins_is_seen_under_the_registration_that_it_joins_by(world, monkeypatch):
    """The registration may have moved because the broker has given up what its row still tells of."""
    assert world.look(LED).eligible == {2: 20, 3: 30}
    monkeypatch.setattr(follower_rows, "PATIENCE_SECONDS", 0.05)
    hanging = world.reads[2] = Hanging(lambda: {P0: "row of 2"})
    wait_until(lambda: world.look(LED).eligible == {2: 20, 3: 30}, "a look that is not waited for")
    fenced = replace(LED, partition_epoch=1)
    wait_until(lambda: world.look(fenced).eligible == {3: 30}, "a look at broker 3")
    found = world.look(fenced)
    assert found.rows[2] == "row of 2", "that it counts for the HW does no harm"
    hanging.let_go()
    wait_until(lambda: world.look(fenced).eligible == {2: 20, 3: 30}, "a look at broker 2 that began since")
