"""The rows of metadata that changed, version by version."""

import dataclasses
import os

import pyarrow as pa
import pytest

from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.readings import cluster_reading as module
from lakelog.replication.storage.readings.cluster_reading import metadata_changes
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.schemas.views.readings import METADATA_CHANGES


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
