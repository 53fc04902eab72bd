"""A partition is opened by its replica's row, its log after that, and the check that the row describes the log."""

import shutil

import pytest

from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, TimestampAndOffset, offset_for
from lakelog.replication.clients.partition_reader import PartitionReader
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import (
    FencedLeaderEpochException,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    UnknownLeaderEpochException,
)
from lakelog.replication.protocol.partition_registration import NO_LEADER
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from tests.clients.world import filled_world
from tests.registrations import register
from tests.storage.logs import P0, P1, TOPIC, fill, start_at


@pytest.fixture
def world(root):
    return filled_world(root)


@pytest.fixture
def view(world):
    return TopicView(Cluster.open(world.uri))


def seen(view, number=0):
    return view.leaderships(TOPIC, [number])[number]


def test_fe_01_the_log_is_read_again_after_rows_that_came_later(world, view):
    """Otherwise a row that is newer than the log would promise records that the reader does not know."""
    reader, before = PartitionReader(view), seen(view)
    assert reader.open(before).log.log_end_offset == 3
    fill(world.logs[1], P1, 4)
    world.say(6, P1)
    opened = reader.leader(seen(view, 1).registration)
    assert (opened.high_watermark, opened.log.log_end_offset) == (6, 6)


def test_fe_01_records_below_a_log_start_that_is_newer_than_the_row_are_committed(world, view):
    """Only committed records are deleted, so the row's HW is out of date, and no reader starts above its end."""
    before = seen(view)
    fill(world.logs[1], P0, 2)
    start_at(world.logs[1], P0, 4)
    opened = PartitionReader(view).open(before)
    assert (opened.row.high_watermark, opened.log.log_start_offset, opened.high_watermark) == (3, 4, 4)
    assert [offset_for(opened, time) for time in (EARLIEST, LATEST)] == [TimestampAndOffset(4)] * 2
    assert offset_for(opened, MAX_TIMESTAMP) is None, "no record from the log start on is known to be committed"


def test_each_broker_is_read_once_for_all_its_partitions(view, monkeypatch):
    registrations = [seen(view, number).registration for number in (0, 1)]
    read = []
    for kind, name in ((ReplicaTable, "refresh"), (ReplicaLog, "refresh")):
        original = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, f=original, k=kind: read.append(k.__name__) or f(*given))
    reader = PartitionReader(view)
    assert [reader.leader(registration).high_watermark for registration in registrations] == [3, 2]
    assert read == ["ReplicaTable", "ReplicaLog"]


def test_the_files_of_a_log_are_those_of_the_root_that_it_was_read_from(world, view, root):
    """Another process of the broker may register, with another root, while the reader opens partitions."""
    registrations = [seen(view, number).registration for number in (0, 1)]
    reader = PartitionReader(view)
    opened = [reader.leader(registrations[0])]
    moved = StorageRoot.of(root).child("moved")
    shutil.copytree(world.roots[1].uri, moved.uri)
    register(world.cluster.root, 1, moved, epoch=2)
    view.cluster.refresh_brokers()
    opened.append(reader.leader(registrations[1]))
    assert opened[0].state is opened[1].state
    assert opened[0].root.uri == opened[1].root.uri
    assert PartitionReader(view).leader(registrations[1]).root.uri.startswith(moved.uri)


@pytest.mark.parametrize(
    ("metadata", "row", "opening", "fetching"),
    [
        ({"leader": NO_LEADER}, {}, LeaderNotAvailableException, LeaderNotAvailableException),
        ({"leader_epoch": 1}, {}, LeaderNotAvailableException, UnknownLeaderEpochException),
        ({}, {"leader_epoch": 1}, LeaderNotAvailableException, FencedLeaderEpochException),
        ({}, {"role": "follower"}, LeaderNotAvailableException, NotLeaderOrFollowerException),
        ({}, {"chain": "another"}, LeaderNotAvailableException, LeaderNotAvailableException),
    ],
    ids=["no leader", "not yet", "no longer", "a follower", "its end is lost"],
)
def test_a_partition_that_cannot_be_read_has_the_error_of_a_client_or_of_a_fetch(
    world, view, metadata, row, opening, fetching
):
    world.change(**metadata)
    world.say(3, **row)
    view.cluster.metadata.refresh()
    reader = PartitionReader(view)
    with pytest.raises(opening):
        reader.open(seen(view))
    with pytest.raises(fetching):
        reader.open_for_fetch(seen(view))
