"""A real power cut: an ext4 file system stops to write, so that its image has only what has reached the disk. The user
must be allowed to mount it, as root is."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from lakelog.replication.storage.cluster import format_broker
from lakelog.replication.storage.delta import delta_log
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_probe import recover_root, storage_error
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.verification.roots.disks import cut_power
from tests.storage.logs import P0, fill, lead, leo


@contextmanager
def mounted(image, folder):
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop", image, folder], check=True, timeout=60)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True, timeout=60)


@pytest.fixture
def disk(tmp_path):
    """A new ext4 file system, mounted, and its image."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=60)
    with mounted(image, tmp_path / "disk") as folder:
        yield image, folder


def write(folder, fsync):
    """A broker's root with two checkpoints of each table, and the records that it has taken."""
    root = StorageRoot.of(f"{folder}/lake/broker-1", fsync=fsync)
    format_broker(root, "cluster-id", 1)
    log, rows = ReplicaLog.open(root.child("log")), ReplicaTable.open(root)
    lead(log, P0, epoch=0)
    for epoch in range(1, 13):
        rows.claim(epoch)
        fill(log, P0, 1)
        for table in (log, rows):
            table.maintain()
    assert len([name for name in log.root.child("_delta_log").list() if ".checkpoint" in name]) >= 2
    return leo(log)


def after_power_cut(image, tmp_path):
    """The image as the disk has it now; its journal is replayed when it is mounted."""
    cut_power(tmp_path / "disk")
    copy = tmp_path / "copy"
    shutil.copyfile(image, copy)
    return mounted(copy, tmp_path / "after")


def test_with_fsync_a_real_power_cut_takes_nothing_that_was_committed(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    image, folder = disk
    records = write(folder, fsync=True)
    with after_power_cut(image, tmp_path) as after:
        root = StorageRoot.of(f"{after}/lake/broker-1")
        assert storage_error(root, "cluster-id", 1) is None
        assert leo(ReplicaLog.open(root.child("log"))) == records
        assert ReplicaTable.open(root).version >= 12


def test_what_a_real_power_cut_leaves_without_fsync_is_recovered(disk, tmp_path, monkeypatch):
    """The file system writes names before contents, so that files may be empty."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    image, folder = disk
    root = StorageRoot.of(f"{folder}/lake/broker-1")
    format_broker(root, "cluster-id", 1)
    os.sync()
    log = ReplicaLog.open(root.child("log"))
    lead(log, P0, epoch=0)
    fill(log, P0, *[1] * 4)
    os.sync()
    kept = leo(log)
    for _ in range(8):
        fill(log, P0, 1)
        log.maintain()
    journal = os.open(folder / "journal", os.O_CREAT | os.O_WRONLY)  # its sync commits the names of all files
    os.fsync(journal)
    os.close(journal)
    with after_power_cut(image, tmp_path) as after:
        found = StorageRoot.of(f"{after}/lake/broker-1")
        recover_root(found, "cluster-id", 1)
        assert storage_error(found, "cluster-id", 1) is None
        assert kept <= leo(ReplicaLog.open(found.child("log"))) <= leo(log)
