"""Committed offsets come back, and consumers that commit at the same time lose nothing of each other's."""

import pytest

from replication.protocol.record_batch import TopicIdPartition
from replication.storage.commit import last_version, read_commit
from replication.storage.filesystem import StorageRoot
from replication.storage.group_table import CommittedOffset, GroupTable
from tests.processes import race

COMMITS = 20


@pytest.fixture
def storage(root):
    made = StorageRoot.of(root)
    GroupTable.create(made)
    return made


def row(offset, group="g", partition=0, topic_id="id"):
    return CommittedOffset(group, "t", topic_id, partition, offset)


def key(partition=0, topic_id="id"):
    return TopicIdPartition(topic_id, partition)


def test_ap_04_committed_offsets_come_back(storage):
    table, other = GroupTable.open(storage), GroupTable.open(storage)
    table.commit([row(3), row(0, partition=1)])
    other.commit([row(5), row(7, topic_id="another"), row(9, group="h")])
    assert table.committed("g") == other.committed("g") == {key(): 5, key(1): 0, key(0, "another"): 7}
    assert table.committed("h") == {key(): 9}
    assert table.committed("nobody") == {}
    other.commit([row(4)])
    assert table.committed("g")[key()] == 4, "an offset may go back"


@pytest.mark.parametrize("rows", [[], [row(3)]])
def test_ap_04_what_is_committed_already_is_not_written_again(storage, rows):
    table = GroupTable.open(storage)
    table.commit([row(3), row(4, partition=1)])
    table.commit(rows)
    assert last_version(storage.child("groups")) == 1


def test_ap_04_a_commit_says_whose_it_is(storage):
    GroupTable.open(storage).commit([row(3)])
    info = read_commit(storage.child("groups"), 1).info
    assert (info["who"], info["why"], info["groups"]) == ("consumer", "commit", ["g"])


def commit_often(start, uri, partition):
    table = GroupTable.open(StorageRoot.of(uri))
    start()
    for offset in range(1, COMMITS + 1):
        table.commit([row(offset, partition=partition)])
    return table.committed("g")[key(partition)]


def test_ap_04_two_processes_commit_at_the_same_time(storage):
    assert race(commit_often, (storage.uri, 0), (storage.uri, 1)) == [COMMITS, COMMITS]
    assert GroupTable.open(storage).committed("g") == {key(0): COMMITS, key(1): COMMITS}
    assert last_version(storage.child("groups")) == 2 * COMMITS
