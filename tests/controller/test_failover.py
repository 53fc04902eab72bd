"""The first steps of a new controller on real tables, while another may write to them."""

from dataclasses import replace

import pytest

from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.admin_table import AdminTable
from lakelog.replication.storage.tables.config_table import ConfigTable
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.replication.storage.tables.topic_table import TopicTable
from tests.controller.world import P, World

TABLES = (MetadataTable, TopicTable, AdminTable, ConfigTable)


@pytest.fixture
def world(root):
    return World(root)


def test_fo_01_fo_02_every_table_is_claimed_before_anything_is_read(world, monkeypatch):
    """Otherwise an older controller could still write after the read, unnoticed."""
    done = []

    def noted(owner, name):
        act = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (done.append((owner.__name__, name)), act(*given))[1])

    for table in TABLES:
        noted(table, "claim")
        noted(table, "poll")
        noted(table, "refresh")
    noted(Cluster, "poll_brokers")
    world.fail_over()
    assert done[: len(TABLES)] == [(table.__name__, "claim") for table in TABLES]
    read = {(table.__name__, "refresh" if table is AdminTable else "poll") for table in TABLES}
    read |= {("Cluster", "poll_brokers")}
    assert read <= set(done[len(TABLES) :])


def test_fo_02_is_05_what_a_leader_writes_between_claim_and_read_is_seen(world, monkeypatch):
    other, claim = MetadataTable.open(world.cluster.root), MetadataTable.claim

    def claim_and_be_overtaken(table, *controller):
        claim(table, *controller)
        other.refresh()
        found = other.partitions[P]
        other.put([replace(found, isr=(1, 3), partition_epoch=found.partition_epoch + 1)], {"who": "a leader"})

    monkeypatch.setattr(MetadataTable, "claim", claim_and_be_overtaken)
    world.fail_over()
    assert world.controller.context.partitions[P].isr == (1, 3)
    assert world.partition() == (1, (1, 3), 0, 1)


def test_fo_02_td_04_deletions_that_are_under_way_are_read_with_all_the_rest(world):
    topic = world.controller.context.topics["flights"]
    world.cluster.topics.change([replace(topic, deleting=True)], (), {"who": "test"})
    world.fail_over()
    context = world.controller.context
    assert (context.partitions[P].leader, set(context.deletions)) == (-2, {"flights-id"})
    assert set(context.replica_states.values()) == {"ReplicaDeletionStarted"}


def test_li_01_bc_02_a_poll_finds_brokers_that_have_registered(world):
    world.poll(2, 3)
    assert world.partition()[:2] == (2, (2, 3))
    assert set(world.controller.context.brokers) == {2, 3}
    world.register(1, epoch=2)
    world.poll(1, 2, 3)
    assert world.controller.context.brokers[1].broker_epoch == 2
    assert set(world.controller.context.replica_states.values()) == {"OnlineReplica"}


def test_ev_02_ev_03_a_new_term_begins_with_an_empty_queue_and_a_new_context(world, monkeypatch):
    """An event ended the last term. The next controller finds the remaining work by itself."""
    change = MetadataTable.change
    monkeypatch.setattr(MetadataTable, "change", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(OSError, match="full"):
        world.poll(2, 3)
    monkeypatch.setattr(MetadataTable, "change", change)
    assert world.partition()[0] == 1
    commits = world.commits()
    world.fail_over()
    assert world.partition()[:2] == (2, (2, 3))
    assert world.commits() == commits + 2, "the claim, and one change"
    world.poll(2, 3)
    assert world.commits() == commits + 2
