"""Files that no version needs go, long after; those that somebody may need stay."""

import os
from pathlib import Path

import pytest

from replication.errors import KafkaStorageException
from replication.storage.file_cleaner import FileCleaner
from replication.storage.filesystem import StorageRoot
from tests.clock import Clock

HOUR, DAY = 3600.0, 86400.0


@pytest.fixture
def storage(root):
    made = StorageRoot.of(root)
    for name in ("active.parquet", "removed.parquet", "orphan.parquet"):
        made.write(name, b"content")
    return made


class World:
    def __init__(self, storage):
        self.storage, self.clock = storage, Clock()
        self.cleaner = FileCleaner(storage, HOUR, self.clock, lambda: 10 * DAY - 100 + self.clock())
        for name in storage.list():
            os.utime(storage.path(name), (10 * DAY, 10 * DAY))

    def clean_after(self, seconds, *active):
        self.clock.now += seconds
        self.cleaner.clean({"active.parquet", *active})
        return set(self.storage.list())


@pytest.fixture
def world(storage):
    return World(storage)


@pytest.mark.parametrize(("seconds", "is_there"), [(0, True), (HOUR - 1, True), (HOUR, False)])
def test_na_04_a_removed_file_outlives_its_removal(world, seconds, is_there):
    world.cleaner.removed(["removed.parquet"])
    assert ("removed.parquet" in world.clean_after(seconds)) is is_there


def test_na_04_a_file_that_a_later_commit_has_brought_back_stays(world):
    world.cleaner.removed(["removed.parquet"])
    assert "removed.parquet" in world.clean_after(2 * HOUR, "removed.parquet")


@pytest.mark.parametrize(("seconds", "is_there"), [(HOUR, True), (DAY - 1, True), (DAY + 1, False)])
def test_na_04_what_no_version_knows_goes_after_a_day(world, seconds, is_there):
    """It may be about to be committed by a slow writer; and a crash leaves such files."""
    assert ("orphan.parquet" in world.clean_after(seconds)) is is_there


def test_na_04_what_is_needed_stays_for_ever(world):
    assert "active.parquet" in world.clean_after(100 * DAY)


def test_na_04_a_file_that_is_gone_already_is_no_error(world):
    world.cleaner.removed(["removed.parquet"])
    world.storage.delete("removed.parquet")
    assert world.clean_after(2 * HOUR) == {"active.parquet", "orphan.parquet"}


def test_ol_02_a_root_that_does_not_answer_is_an_error_and_the_file_goes_later(world, monkeypatch):
    world.cleaner.removed(["removed.parquet"])
    delete = StorageRoot.delete

    def fails(*_):
        raise KafkaStorageException("read-only")

    monkeypatch.setattr(StorageRoot, "delete", fails)
    with pytest.raises(KafkaStorageException, match="read-only"):
        world.clean_after(HOUR)
    monkeypatch.setattr(StorageRoot, "delete", delete)
    assert "removed.parquet" not in world.clean_after(0)


@pytest.mark.parametrize("name", ["../elsewhere.parquet", "..%2Felsewhere.parquet", "storage-probe"])
def test_na_04_a_file_is_deleted_only_if_its_name_is_that_of_a_data_file(world, name):
    """A commit may have named any file, and others write commits too."""
    Path(world.storage.path(name)).write_bytes(b"content")
    os.utime(world.storage.path(name), (0, 0))
    world.cleaner.removed([name])
    world.clean_after(10 * DAY)
    assert world.storage.exists(name)
