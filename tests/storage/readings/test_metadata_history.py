"""The rows of metadata that changed, version by version, and the events that they mean."""

import dataclasses
import os
import time

import pyarrow as pa
import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.storage.delta.commit_format import commit_name, drop_commits_before
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_history import commit_times
from lakelog.replication.storage.readings import metadata_history as module
from lakelog.replication.storage.readings.metadata_history import ClusterEvents, metadata_changes
from lakelog.replication.storage.tables.metadata_table import BROKER_CHANGES, MetadataTable
from lakelog.schemas.views.readings import METADATA_CHANGES
from tests.hanging import raises


def partition(number, **changes):
    return dataclasses.replace(new_partition("t", "id", number, (1, 2), {1, 2}), **changes)


@pytest.fixture
def cluster(root):
    """Version 1 makes two partitions, 2 changes one, 3 changes nothing, 4 removes the other."""
    home = StorageRoot.of(root)
    table = MetadataTable.create(home)
    table.put([partition(0), partition(1)], {"who": "controller", "why": "TopicChange"})
    table.put([partition(0, isr=(1,), partition_epoch=1)], {"who": "broker-1", "why": "isr"})
    table.claim(4)
    table.change(lambda _: {partition(1).topic_id_partition: None}, {"who": "controller", "why": "deleted"})
    for version in range(5):
        os.utime(f"{root}/metadata/{commit_name(version)}", (100 + version, 100 + version))
    return home


def found(cluster, at=None):
    tables = list(metadata_changes(cluster, at))
    assert all(table.schema.equals(METADATA_CHANGES.arrow) for table in tables)
    whole = pa.concat_tables([METADATA_CHANGES.arrow.empty_table(), *tables])
    return [
        (
            r["version"],
            r["partition"],
            r["isr"],
            r["is_first"],
            r["is_removed"],
            r["why"],
            r["committed_at"].timestamp(),
        )
        for r in whole.to_pylist()
    ]


CREATED = [(1, 0, [1, 2], False, False, "TopicChange", 101), (1, 1, [1, 2], False, False, "TopicChange", 101)]
SHRUNK, REMOVED = (2, 0, [1], False, False, "isr", 102), (4, 1, [1, 2], False, True, "deleted", 104)


def test_is_05_each_version_gives_the_rows_that_it_changed_or_removed(cluster, monkeypatch):
    assert found(cluster) == [*CREATED, SHRUNK, REMOVED]
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    assert found(cluster) == [*CREATED, SHRUNK, REMOVED], "however many versions are read at once"


@pytest.mark.parametrize(("at", "versions"), [(100.5, 0), (101, 2), (103, 3), (104, 4)])
def test_no_version_is_younger_than_the_time_that_is_asked_for(cluster, at, versions):
    assert found(cluster, at) == [*CREATED, SHRUNK, REMOVED][:versions]


def test_history_begins_after_a_version_whose_file_is_gone_with_all_rows_as_the_oldest_known(cluster):
    root = cluster.child("metadata")
    first = next(name for name in root.list() if name.endswith(".parquet") and is_added_by(root, name, 1))
    root.delete(first)
    assert found(cluster) == [
        (2, 0, [1], True, False, "isr", 102), (2, 1, [1, 2], True, False, "isr", 102), REMOVED
    ]  # fmt: skip


def is_added_by(root, name, version):
    return f'"add":{{"path":"{name}"'.encode() in root.read(commit_name(version))


def test_without_a_topic_there_is_no_change(root):
    MetadataTable.create(StorageRoot.of(root))
    assert found(StorageRoot.of(root)) == []


BEFORE = partition(0, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=4)


def moved(**changes):
    return dataclasses.replace(BEFORE, partition_epoch=BEFORE.partition_epoch + 1, **changes)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        pytest.param(
            moved(leader=2, isr=(2, 3)),
            [("LeaderElected", [2], "leader 1 -> 2"), ("IsrShrunk", [1], "without 1")], id="the leader is lost",
        ),
        pytest.param(moved(isr=(1,)), [("IsrShrunk", [2, 3], "without 2, 3")], id="followers are slow"),
        pytest.param(
            moved(leader=-1, isr=(1,)),
            [
                ("PartitionOffline", [1], "broker 1 led it, and no in-sync replica is alive"),
                ("IsrShrunk", [2, 3], "without 2, 3"),
            ],
            id="all are lost",
        ),
        pytest.param(
            moved(leader=4, isr=(4,)),
            [
                ("UncleanLeaderElected", [4], "leader 1 -> 4, which was not in the ISR"),
                ("IsrShrunk", [1, 2, 3], "without 1, 2, 3"), ("IsrExpanded", [4], "with 4"),
            ],
            id="an unclean election",
        ),
        pytest.param(
            moved(replicas=(4, 1, 2, 3), adding_replicas=(4,), removing_replicas=(3,)),
            [("ReassignmentStarted", [4], "adds 4, removes 3")], id="a reassignment begins",
        ),
        pytest.param(
            moved(leader=-2), [("DeletionStarted", [1, 2, 3], "its topic is being deleted")], id="a deletion begins"
        ),
        pytest.param(moved(leader_epoch=5), [], id="nothing but an epoch"),
    ],
)  # fmt: skip
def test_a_change_of_a_partition_is_the_events_that_it_means(root, after, found):
    table = MetadataTable.create(StorageRoot.of(root))
    history = ClusterEvents(StorageRoot.of(root))
    table.put([BEFORE], {"who": "controller", "controller": "c", "why": "TopicChange"})
    created = ("PartitionCreated", [1, 2, 3], "3 replicas", "c", "TopicChange")
    assert [shape(event) for event in history.read_on()] == [created]
    table.put([after], {"who": "controller", "controller": "c", "why": "BrokerChange", "requested_by": "me"})
    assert [shape(event) for event in history.read_on()] == [(*each, "me", "BrokerChange") for each in found]
    assert list(history.read_on()) == []


def shape(event):
    return event.event, list(event.brokers), event.detail, event.who, event.why


def test_an_election_that_the_controller_calls_unclean_is_so_though_the_leader_was_in_the_isr(root):
    """It has lost its log since."""
    table = MetadataTable.create(StorageRoot.of(root))
    table.put([moved(leader=-1, isr=(1,))], {"who": "controller", "why": "test"})
    history = ClusterEvents(StorageRoot.of(root))
    list(history.read_on())
    elected = dataclasses.replace(moved(leader=1, isr=(1,)), partition_epoch=9)
    table.put([elected], {"who": "controller", "why": "test", "unclean": ["t-0"]})
    assert [shape(event)[:3] for event in history.read_on()] == [
        ("UncleanLeaderElected", [1], "leader none -> 1, which has lost its log")
    ]


def test_what_follows_a_version_that_is_gone_is_no_event(cluster):
    """Nobody knows what it has changed, and who."""
    table = MetadataTable.open(cluster)
    history = ClusterEvents(cluster)
    list(history.read_on())
    files = set(cluster.child("metadata").list())
    table.put([partition(0, isr=(1, 2), partition_epoch=2)], {"who": "broker-1", "why": "isr"})
    (gone,) = (name for name in set(cluster.child("metadata").list()) - files if name.endswith(".parquet"))
    cluster.child("metadata").delete(gone)
    table.put([partition(0, isr=(2,), leader=2, partition_epoch=3)], {"who": "controller", "why": "BrokerChange"})
    assert list(history.read_on()) == []
    table.put([partition(0, isr=(2, 1), leader=2, partition_epoch=4)], {"who": "broker-2", "why": "isr"})
    assert [shape(event)[:3] for event in history.read_on()] == [("IsrExpanded", [1], "with 1")]


def test_a_commit_that_is_not_there_yet_is_read_later(cluster, monkeypatch):
    """With several cluster roots the one that is read may be behind the one that was listed."""
    history = ClusterEvents(cluster)
    with monkeypatch.context() as behind:
        behind.setattr(module, "read_commit", raises(FileNotFoundError("not yet")))
        with pytest.raises(KafkaStorageException, match="metadata: version 0 cannot be read here"):
            list(history.read_on())
    assert history.history.is_behind()
    assert len(list(history.read_on())) == 5


def test_a_commit_that_was_cleaned_up_meanwhile_is_left_out(cluster, monkeypatch):
    history = ClusterEvents(cluster)
    times = [module.commit_times(cluster.child("metadata"))]
    drop_commits_before(cluster.child("metadata"), 2)
    monkeypatch.setattr(module, "commit_times", lambda root: times.pop() if times else commit_times(root))
    assert [event.event for event in history.read_on()] == ["ControllerElected", "PartitionDeleted"]


def test_a_broker_is_lost_once_until_it_is_in_sync_again(root):
    """A controller that is elected may name it, too."""
    table = MetadataTable.create(StorageRoot.of(root))
    history, lost = ClusterEvents(StorageRoot.of(root)), {BROKER_CHANGES: {"3": ["BrokerLost", "is lost"]}}
    isrs = (1, 2, 3), (1, 2), (1,), (1, 3), (1,)
    for epoch, isr in enumerate(isrs):
        change = partition(0, replicas=(1, 2, 3), isr=isr, partition_epoch=epoch)
        table.put([change], {"who": "controller", "why": "test", **(lost if 3 not in isr else {})})
    found = [(event.event, list(event.brokers)) for event in history.read_on()]
    assert [each for each in found if each[1] == [3]] == [
        ("BrokerLost", [3]), ("IsrShrunk", [3]), ("IsrExpanded", [3]), ("BrokerLost", [3]), ("IsrShrunk", [3]),
    ]  # fmt: skip


def test_an_event_keeps_its_time_where_files_were_copied(cluster):
    before = [event.at for event in ClusterEvents(cluster).read_on()]
    for version in range(5):
        os.utime(f"{cluster.uri}/metadata/{commit_name(version)}", (4_000_000_000, 4_000_000_000))
    after = [event.at for event in ClusterEvents(cluster).read_on()]
    assert before == [101, 101, 102, 103, 104]
    assert max(after) <= time.time()


def test_a_reassignment_ends_and_a_partition_without_a_leader_gets_one(root):
    table = MetadataTable.create(StorageRoot.of(root))
    moves = moved(replicas=(4, 1, 2, 3), adding_replicas=(4,), removing_replicas=(3,), leader=-1)
    table.put([moves], {"who": "controller", "why": "test"})
    history = ClusterEvents(StorageRoot.of(root))
    list(history.read_on())
    ended = dataclasses.replace(moves, replicas=(4, 1, 2), adding_replicas=(), removing_replicas=(), leader=1)
    table.put([dataclasses.replace(ended, partition_epoch=9)], {"who": "controller", "why": "test"})
    assert [shape(event)[:3] for event in history.read_on()] == [
        ("LeaderElected", [1], "leader none -> 1"), ("ReassignmentEnded", [4, 1, 2], "replicas 4, 1, 2"),
    ]  # fmt: skip


@pytest.mark.parametrize("more", [[], ["what a newer version tells besides"]])
def test_events_of_the_whole_cluster_come_from_the_causes_of_commits(cluster, more):
    table = MetadataTable.open(cluster)
    history = ClusterEvents(cluster)
    assert [event.event for event in history.read_on()] == [
        "PartitionCreated", "PartitionCreated", "IsrShrunk", "ControllerElected", "PartitionDeleted",
    ]  # fmt: skip
    lost = {BROKER_CHANGES: {"3": ["BrokerLost", "is lost (no heartbeat for 9 s)", *more]}}
    table.put([partition(0, isr=(1, 2), partition_epoch=2)], {"who": "controller", "why": "BrokerChange", **lost})
    assert [shape(event)[:3] for event in history.read_on()] == [
        ("BrokerLost", [3], "broker 3 is lost (no heartbeat for 9 s)"), ("IsrExpanded", [2], "with 2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("since", "first", "names"),
    [
        (99, 0, ["PartitionCreated", "PartitionCreated", "IsrShrunk", "ControllerElected", "PartitionDeleted"]),
        (101.5, 1, ["IsrShrunk", "ControllerElected", "PartitionDeleted"]),
        (103.5, 2, ["PartitionDeleted"]),
        (200, 4, []),
    ],
)
def test_events_begin_at_a_time_although_older_versions_are_not_read(cluster, monkeypatch, since, first, names):
    """The last version before has the rows that the first event changes, also if its commit changed none."""
    read = module.read_commit

    def only_near(root, version):
        assert version >= first, "a version that nobody needs"
        return read(root, version)

    history = ClusterEvents(cluster, since)
    monkeypatch.setattr(module, "read_commit", only_near)
    assert [event.event for event in history.read_on()] == names


def test_a_history_knows_whether_there_is_a_version_that_it_has_not_read(cluster):
    history = ClusterEvents(cluster)
    assert history.history.is_behind()
    list(history.read_on())
    assert not history.history.is_behind()
    MetadataTable.open(cluster).put([partition(7)], {"who": "controller", "why": "test"})
    assert history.history.is_behind()
    list(history.read_on())
    assert not history.history.is_behind()
