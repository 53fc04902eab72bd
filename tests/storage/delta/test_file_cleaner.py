"""The file cleaner deletes unneeded files after a long delay, and keeps files that a reader may need."""

import os
from pathlib import Path

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.file_cleaner import FileCleaner
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import PRODUCERS
from tests.clock import Clock
from tests.storage.tables.test_state_tables import row

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
        self.cleaner = FileCleaner(storage, HOUR, self.clock)

    def clean_after(self, seconds, *active):
        self.clock.now += seconds
        self.cleaner.clean(lambda: {"active.parquet", *active})
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


@pytest.mark.parametrize(("seconds", "is_there"), [(HOUR, True), (DAY - 1, True), (DAY + 301, False)])
def test_na_04_what_no_version_knows_goes_after_a_day(world, seconds, is_there):
    """A slow writer may be about to commit it, and a crash leaves such files."""
    world.clean_after(301)
    assert ("orphan.parquet" in world.clean_after(seconds - 301)) is is_there


def test_na_04_a_file_that_was_in_a_version_between_two_sweeps_outlives_its_removal(world):
    """A slow writer commits it after almost a day, and a compaction removes it soon after."""
    world.clean_after(301)
    world.clean_after(DAY - 301)
    world.cleaner.removed(["orphan.parquet"])
    assert "orphan.parquet" in world.clean_after(302)
    assert "orphan.parquet" not in world.clean_after(HOUR)


def test_na_04_a_clock_that_is_days_ahead_makes_no_delay_shorter(world):
    """A slow writer is about to commit the file. By the observer's own clock it has been there for minutes."""
    os.utime(world.storage.path("orphan.parquet"), (0, 0))
    assert "orphan.parquet" in world.clean_after(301)
    assert "orphan.parquet" in world.clean_after(2 * HOUR)
    assert "orphan.parquet" in world.clean_after(DAY - 2 * HOUR - 1)
    assert "orphan.parquet" not in world.clean_after(301)


def test_na_04_what_was_removed_before_a_restart_outlives_its_removal_from_then_on(world):
    """A new process knows of no removal: a reader of an older version may have just begun."""
    world.cleaner.removed(["removed.parquet"])
    world.clean_after(301)
    restarted = World(world.storage)
    restarted.clean_after(301)
    assert "removed.parquet" in restarted.clean_after(DAY - 1)
    assert "removed.parquet" not in restarted.clean_after(301)


def test_na_04_removals_that_are_due_make_no_file_be_seen_anew(world):
    """Removals come every few seconds, sweeps every few minutes."""
    world.clean_after(301)
    world.cleaner.removed(["removed.parquet"])
    world.clean_after(DAY - 200)
    assert "removed.parquet" not in world.clean_after(200)
    assert "orphan.parquet" not in world.clean_after(301)


def test_na_04_a_file_that_is_needed_in_between_is_waited_for_anew(world):
    world.clean_after(301)
    world.clean_after(DAY, "orphan.parquet")
    assert "orphan.parquet" in world.clean_after(301)
    assert "orphan.parquet" not in world.clean_after(DAY)


def test_na_04_a_commit_that_lands_after_the_listing_saves_its_file(world, monkeypatch):
    """The newest version is read after the listing, not before."""
    world.clean_after(301)
    active, sizes = {"active.parquet"}, StorageRoot.sizes_listed

    def listing(root):
        found = sizes(root)
        active.add("orphan.parquet")
        return found

    monkeypatch.setattr(StorageRoot, "sizes_listed", listing)
    world.clock.now += 2 * DAY
    world.cleaner.clean(lambda: set(active))
    assert "orphan.parquet" in world.storage.list()


def test_na_04_the_newest_version_is_asked_for_only_when_files_may_go(world):
    """It costs requests, and maintenance runs every two seconds."""
    world.cleaner.removed(["removed.parquet"])
    world.clock.now += 299
    assert world.cleaner.clean(lambda: pytest.fail("asked in vain")) == 0


def test_na_04_what_is_needed_stays_for_ever(world):
    assert "active.parquet" in world.clean_after(100 * DAY)


def test_na_04_a_file_that_is_gone_already_is_no_error(world):
    world.cleaner.removed(["removed.parquet"])
    world.storage.delete("removed.parquet")
    assert world.clean_after(2 * HOUR) == {"active.parquet", "orphan.parquet"}


def test_ol_02_a_root_that_does_not_answer_is_an_error_and_the_file_goes_later(world, monkeypatch):
    world.cleaner.removed(["removed.parquet"])
    delete = LocalRoot.delete

    def fails(*_):
        raise KafkaStorageException("read-only")

    monkeypatch.setattr(LocalRoot, "delete", fails)
    with pytest.raises(KafkaStorageException, match="read-only"):
        world.clean_after(HOUR)
    monkeypatch.setattr(LocalRoot, "delete", delete)
    assert "removed.parquet" not in world.clean_after(0)


@pytest.mark.parametrize("name", ["../elsewhere.parquet", "..%2Felsewhere.parquet", "storage-probe"])
def test_na_04_a_file_is_deleted_only_if_its_name_is_that_of_a_data_file(world, name):
    """A commit may name any file, and others write commits too."""
    Path(world.storage.path(name)).write_bytes(b"content")
    os.utime(world.storage.path(name), (0, 0))
    world.cleaner.removed([name])
    for _ in range(2):
        world.clean_after(10 * DAY)
    assert world.storage.exists(name)


def test_na_04_who_cleans_a_table_that_others_write_looks_at_it_first(root):
    """Its own state may be a day old, and would not have the newest version's files."""
    storage = StorageRoot.of(root).child("producers")
    owner = StateTable.create_at(storage, PRODUCERS)
    owner.maintain()
    owner._cleaner._clock = clock = Clock()
    clock.now += owner._cleaner._swept_at
    StateTable.open_at(storage, PRODUCERS).update({"who": "a client"}, lambda _: [row("p")])
    for name in storage.modified():
        os.utime(storage.path(name), (0, 0))
    for _ in range(3):
        clock.now += 2 * HOUR
        owner.maintain()
    assert StateTable.open_at(storage, PRODUCERS).rows == [row("p")]
