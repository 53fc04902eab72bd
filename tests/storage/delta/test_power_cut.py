"""With `storage.fsync` a power cut takes nothing that was committed. A table is opened from what is whole."""

import dataclasses
from pathlib import Path

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta import delta_log
from lakelog.replication.storage.delta.commit_reader import commit_name, is_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.log_recovery import ASIDE, recover_log
from lakelog.replication.storage.delta.root_probe import recover_root, storage_error
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from tests.storage.delta.tables import checkpoint, facts, filled, go_on, moved, of
from tests.storage.delta.unsynced import UnsyncedDisk
from tests.storage.logs import P0, fill, lead, leo


@pytest.fixture
def often(monkeypatch):
    """Checkpoints after 5 commits, of which few stay."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    monkeypatch.setattr("lakelog.replication.storage.log.replica_log.LOG", dataclasses.replace(LOG, commits_kept=3))


def broker_root(folder, fsync):
    root = StorageRoot.of(str(folder / "lake" / "broker-1"), fsync=fsync)
    format_broker(root, "cluster-id", 1)
    return root


@pytest.mark.usefixtures("often")
def test_li_04_with_fsync_a_power_cut_takes_nothing_that_was_committed(tmp_path, monkeypatch):
    """At any moment: checkpoints, new tables and new folders are synced before anything needs them."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root = broker_root(tmp_path, fsync=True)
    log, registered = ReplicaLog.open(root.child("log")), BrokerTable.open_or_create(root, 1)
    lead(log, P0, epoch=0)
    registered.register(lambda _: BrokerRegistration(1, "/1", None, 1, -1, False, None, "log", 0))
    for count in range(1, 18):
        fill(log, P0, 1)
        registered.update(1, "heartbeat", log_version=count)
        for table in (log, registered):
            table.maintain()
        after = StorageRoot.of(str(disk.after_power_cut(tmp_path / "after") / "broker-1"))
        assert storage_error(after, "cluster-id", 1) is None
        assert leo(ReplicaLog.open(after.child("log"))) == count
        assert BrokerTable.open(after, 1).registration == registered.registration
    assert len(checkpoints(log.root)) >= 2


@pytest.mark.usefixtures("often")
def test_li_04_without_fsync_a_power_cut_takes_no_commit_of_the_cluster_that_a_broker_has_noted(tmp_path, monkeypatch):
    """Else brokers refuse the cluster root for good. The worst case is a note that is durable at once."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root, noted = StorageRoot.of(str(tmp_path / "lake" / "cluster")), StorageRoot.of(str(tmp_path / "note"))
    noted.create_folder()
    format_cluster(root, Config())
    cluster = Cluster.open(root.uri)
    for count in range(1, 13):
        cluster.metadata.put([PartitionRegistration("t", "id", count, (1,), 1, 0, (1,), 0)], {"who": "test"})
        cluster.topics.change([Topic("t", "id", count)], (), {"who": "test"})
        for table in (cluster.metadata, cluster.topics):
            table.maintain()
        cluster.note_what_was_seen(noted)
        assert_is_kept(disk.after_power_cut(tmp_path / "after") / "cluster", cluster.seen_by(noted))
    assert all(checkpoints(root.child(name)) for name in ("metadata", "topics"))


def assert_is_kept(root, seen):
    """Opens the tables of the cluster as the power cut has left them."""
    for name, state in seen.items():
        opened = DeltaLog.open(StorageRoot.of(str(root / name)))
        assert (opened.table_id, opened.version) == (state.table_id, state.version)


def test_a_note_waits_for_the_sync_of_a_commit_whose_writer_has_not_done_it_yet(tmp_path, monkeypatch):
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    root, noted = StorageRoot.of(str(tmp_path / "lake" / "cluster")), StorageRoot.of(str(tmp_path / "note"))
    noted.create_folder()
    format_cluster(root, Config())
    cluster, reader = Cluster.open(root.uri), Cluster.open(root.uri)
    with monkeypatch.context() as between:
        between.setattr(StorageRoot, "sync_folder", lambda *_: None)
        cluster.metadata.put([PartitionRegistration("t", "id", 0, (1,), 1, 0, (1,), 0)], {"who": "test"})
    reader.metadata.refresh()
    reader.note_what_was_seen(noted)
    assert reader.seen_by(noted)["metadata"].version == cluster.metadata.version
    assert_is_kept(disk.after_power_cut(tmp_path / "after") / "cluster", reader.seen_by(noted))


def checkpoints(root):
    return [name for name in root.child("_delta_log").list() if ".checkpoint" in name]


def test_without_fsync_a_power_cut_takes_all(tmp_path, monkeypatch):
    """So the model notices what is not synced."""
    (tmp_path / "lake").mkdir()
    disk = UnsyncedDisk(tmp_path / "lake", monkeypatch)
    broker_root(tmp_path, fsync=False)
    assert disk.syncs == 0
    assert list(disk.after_power_cut(tmp_path / "after").iterdir()) == []


TORN = {
    "empty": lambda content: content[:0],
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("torn", TORN)
def test_li_04_a_table_whose_newest_checkpoint_is_torn_is_read_from_an_older_one(table, torn, caplog):
    log = go_on(filled(table, 3), 4)
    checkpoint(log)
    checkpoint(go_on(log, 5, 6))
    go_on(log, 7)
    name = f"_delta_log/{6:020}.checkpoint.parquet"
    content = table.read(name)
    table.write("x", b"")
    table.child("_delta_log").write(name.split("/")[1], TORN[torn](content))
    found = DeltaLog.open(table)
    assert facts(found) == of(7)
    assert f"{6:020}.checkpoint.parquet: torn, so it was read from older files" in caplog.text
    found.commit({})
    found.move()
    other = DeltaLog.open(table)
    assert other.version == 8


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_hint_at_the_last_checkpoint_is_no_harm(tmp_path, torn):
    root = StorageRoot.of(str(tmp_path))
    checkpoint(filled(root, 3))
    path = Path(root.path("_delta_log/_last_checkpoint"))
    path.write_bytes(TORN[torn](path.read_bytes()))
    assert moved(DeltaLog.open(root)) == of(3)


def test_the_next_checkpoint_heals_a_torn_one(tmp_path, monkeypatch):
    """It is made of an older one and the commits. The torn one is put aside."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    root = StorageRoot.of(str(tmp_path))
    log = filled(root, 4)
    checkpoint(log)
    Path(root.path(f"_delta_log/{4:020}.checkpoint.parquet")).write_bytes(b"PAR1")
    owner = go_on(DeltaLog.open(root), *range(5, 12))
    owner.checkpoint_if_due()
    assert checkpoints(root) == [f"{11:020}.checkpoint.parquet"]
    assert root.open_table().version() == 11
    assert facts(DeltaLog.open(root)) == of(11)


@pytest.mark.usefixtures("often")
def test_li_04_a_clean_up_keeps_what_a_torn_checkpoint_needs(tmp_path):
    """The last checkpoint but one, and the commits since then."""
    root = StorageRoot.of(str(tmp_path))
    log = ReplicaLog.create(root)
    lead(log, P0, epoch=0)
    for _ in range(23):
        fill(log, P0, 1)
        log.maintain()
    newest = checkpoints(root)[-1]
    Path(root.path(f"_delta_log/{newest}")).write_bytes(b"")
    kept = [int(name[:20]) for name in root.child("_delta_log").list() if is_commit(name)]
    assert kept[0] > 0
    assert leo(ReplicaLog.open(root)) == 23


def test_after_a_power_cut_commits_before_a_torn_checkpoint_may_be_torn_too(tmp_path):
    root = StorageRoot.of(str(tmp_path))
    log = filled(root, 6)
    checkpoint(log)
    go_on(log, 7)
    for name in (f"{6:020}.checkpoint.parquet", f"{4:020}.json"):
        root.child("_delta_log").write(name, b"")
    recover_log(root, is_after_crash=True)
    assert facts(DeltaLog.open(root)) == of(3)
    assert len(root.child(ASIDE).list()) == 5


def test_after_a_power_cut_a_broker_begins_with_rows_and_a_log_that_are_whole(tmp_path):
    """The last commits and files of both tables are empty, and some are missing."""
    root = broker_root(tmp_path, fsync=False)
    log, rows = ReplicaLog.open(root.child("log")), ReplicaTable.open(root)
    lead(log, P0, epoch=0)
    for epoch in (1, 2):
        rows.claim(epoch)
        fill(log, P0, 1, 1)
    log.root.child("_delta_log").write(commit_name(log.current().version - 1).split("/")[1], b"")
    rows_root = root.child("replicas")
    rows_root.child("_delta_log").write(commit_name(rows.version).split("/")[1], b"{")
    assert "empty or torn" in storage_error(root, "cluster-id", 1)
    recover_root(root, "cluster-id", 1)
    assert storage_error(root, "cluster-id", 1) is None
    assert leo(ReplicaLog.open(root.child("log"))) == 2
    assert ReplicaTable.open(root).version == rows.version - 1


@pytest.mark.usefixtures("often")
def test_a_checkpoint_is_not_relied_on_if_it_cannot_be_synced(tmp_path, monkeypatch):
    root = StorageRoot.of(str(tmp_path), fsync=True)
    log = ReplicaLog.create(root)
    lead(log, P0, epoch=0)
    fill(log, P0, *[1] * 8)

    def fails(_, version):
        raise KafkaStorageException(f"version {version} cannot be written: Input/output error")

    monkeypatch.setattr(StorageRoot, "sync_checkpoint", fails)
    with pytest.raises(KafkaStorageException, match="Input/output error"):
        log.maintain()
    assert min(name for name in root.child("_delta_log").list() if is_commit(name)) == f"{0:020}.json"
