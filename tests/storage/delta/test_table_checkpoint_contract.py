"""The contract of checkpoints and log clean-up, for delta-rs and in memory. delta-rs is the reference."""

import json

import pytest
from deltalake.exceptions import DeltaError, TableNotFoundError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import add_actions
from lakelog.replication.storage.delta.table_opening import file_statistics
from lakelog.verification.memory_root import MemoryStore
from tests.storage.delta.tables import (
    HOUR,
    SCHEMA,
    at,
    checkpoint,
    commits,
    create,
    facts,
    filled,
    go_on,
    in_memory,
    log_of,
    lose,
    moved,
    names,
    of,
    on_disk,
    opened,
    put,
    seen,
)

GHOST = b'{"commitInfo":{}}\n{"txn":{"appId":"ghost","version":1}}\n'


# --- checkpoints


def clean_up(place, log):
    """A checkpoint of the newest version, and no commits before it: they are older than retention."""
    handle = log.root.open_table(log.version)
    handle.create_checkpoint()
    place.age_commits(*range(log.version + 1))
    handle.cleanup_metadata()


def test_a_checkpoint_has_all_files_and_txns(table):
    log = filled(table, 3)
    stats = json.dumps({"numRecords": 4})
    log.commit({}, [AddedFile("last", 9, stats)], txns={"other": 2**62})
    log.move()
    before = file_statistics(log.root, log.version)
    checkpoint(log)
    assert log_of(table) == [*commits(0, 1, 2, 3), (4, "checkpoint"), (4, "commit")]
    lose(table, 0, 1, 2, 3, 4)
    found = table.open_table()
    assert facts(found) == (4, [*names(3), "last"], 3, None)
    assert found.transaction_version("other") == 2**62
    assert by_path(add_actions(found, True).to_pylist()) == by_path(before)
    assert (str(found.metadata().id), found.schema()) == (log.table_id, SCHEMA)


def by_path(rows):
    return {row["path"]: row for row in rows}


def test_a_checkpoint_is_written_twice_and_of_older_versions_too(table):
    log = filled(table, 3)
    for handle in (log, log, at(table, 2)):
        checkpoint(handle)
    assert [version for version, kind in log_of(table) if kind == "checkpoint"] == [2, 3]
    assert [facts(table.open_table(version)) for version in (1, 2, 3, None)] == [of(1), of(2), of(3), of(3)]


def test_clean_up_leaves_the_checkpoint_s_own_commit_and_all_go_on(place, table):
    log = filled(table, 5)
    others = [opened(table), opened(table)]
    clean_up(place, log)
    assert log_of(table) == [(5, "checkpoint"), (5, "commit")]
    assert facts(table.open_table()) == facts(table.open_table(5)) == moved(log) == of(5)
    others[0].move()
    go_on(others[0], 6)
    assert [moved(found) for found in (log, *others)] == [of(6)] * 3
    assert facts(table.open_table()) == of(6)
    for version in (0, 3, 4):
        with pytest.raises(TableNotFoundError):
            table.open_table(version)


def test_who_is_behind_a_clean_up_can_tell_its_files_and_commit_nothing_until_it_moves(place, table):
    log = filled(table, 3)
    behind = at(table, 2)
    clean_up(place, log)
    assert seen(behind) == (2, names(2))
    with pytest.raises(KafkaStorageException):
        behind.transaction_version("app")
    with pytest.raises(CommitConflict):
        behind.commit({}, [AddedFile("f3", 3)])
    assert moved(behind) == of(3)
    go_on(behind, 4)
    assert moved(log) == of(4)


def test_old_txns_are_told_after_a_clean_up(table):
    log = filled(table, 1)
    log.commit({}, txns={"old": 1})
    log.move()
    go_on(log, 3)
    checkpoint(log)
    lose(table, 0, 1, 2)
    assert log.transaction_version("old") == 1
    go_on(log, 4)
    lose(table, 3)
    assert (log.transaction_version("old"), log.transaction_version("unknown")) == (1, None)
    assert seen(log) == (4, ["f1", "f3", "f4"])


def test_a_checkpoint_without_its_commit_is_read_and_not_built_on(table):
    log = filled(table, 3)
    behind = at(table, 1)
    checkpoint(log)
    lose(table, 0, 1, 2, 3)
    for found in (log, behind, opened(table)):
        assert moved(found) == of(3)
        with pytest.raises(CommitUnknown, match="version 3 is gone"):
            found.commit({}, [AddedFile("f4", 4)])
    assert last_version(table) == -1


def test_a_hole_counts_only_between_the_newest_checkpoint_and_the_newest_commit(table):
    log = filled(table, 2)
    checkpoint(log)
    go_on(log, 3, 4, 5, 6)
    checkpoint(log)
    lose(table, 4)
    assert moved(log) == facts(table.open_table()) == of(6)
    assert facts(table.open_table(3)) == of(3)
    with pytest.raises(DeltaError):
        table.open_table(5)
    go_on(log, 7, 8)
    lose(table, 7)
    with pytest.raises(DeltaError, match=r"[Gg]ap"):
        table.open_table()


@pytest.mark.parametrize("behind_at", [0, 1, 3])
def test_a_ghost_in_the_hole_of_a_clean_up_is_nobody_s_commit(place, table, behind_at):
    filled(table, 5)
    behind = at(table, behind_at)
    log = go_on(opened(table), 6, 7, 8)
    clean_up(place, log)
    put(table, behind_at + 1, GHOST)
    for found in (log, behind, opened(table)):
        assert moved(found) == of(8)
        assert found.transaction_version("ghost") is None
    with pytest.raises(DeltaError):
        table.open_table(behind_at + 1)


# --- clean-up


def test_without_a_checkpoint_nothing_is_cleaned_up(place, table):
    filled(table, 2)
    place.age_commits(0, 1, 2)
    table.open_table().cleanup_metadata()
    assert log_of(table) == commits(0, 1, 2)


def test_clean_up_leaves_a_checkpoint_that_all_younger_commits_are_read_from(place, table):
    """So every version within retention can still be opened."""
    log = filled(table, 2)
    checkpoint(log)
    checkpoint(go_on(log, 3, 4, 5, 6))
    place.age_commits(*range(5))
    place.max_staleness("_delta_log/00000000000000000002.checkpoint.parquet", 2 * HOUR)
    handle = table.open_table()
    handle.cleanup_metadata()
    assert log_of(table) == [(2, "checkpoint"), *commits(2, 3, 4, 5), (6, "checkpoint"), (6, "commit")]
    assert [facts(table.open_table(version)) for version in (2, 4, 5, 6)] == [of(2), of(4), of(5), of(6)]
    place.age_commits(5, 6)
    handle.cleanup_metadata()
    assert log_of(table) == [(6, "checkpoint"), (6, "commit")]


def test_clean_up_is_of_what_came_before_the_handle_s_version(place, table):
    log = filled(table, 2)
    behind = table.open_table()
    checkpoint(log)
    checkpoint(go_on(log, 3, 4))
    place.age_commits(*range(5))
    for version in (2, 4):
        place.max_staleness(f"_delta_log/{version:020d}.checkpoint.parquet", 2 * HOUR)
    behind.cleanup_metadata()
    assert log_of(table) == [(2, "checkpoint"), *commits(2, 3), (4, "checkpoint"), (4, "commit")]
    table.open_table().cleanup_metadata()
    assert log_of(table) == [(4, "checkpoint"), (4, "commit")]


@pytest.mark.parametrize(
    ("configuration", "retention"),
    [
        ("interval 1 hours", HOUR),
        ("interval 1 hour", HOUR),
        ("interval 7 days", 168 * HOUR),
        ("interval 2 weeks", 336 * HOUR),
        ("interval 90 minutes", 1.5 * HOUR),
        ("interval 7200 seconds", 2 * HOUR),
        ("an hour", 720 * HOUR),
        (None, 720 * HOUR),
    ],
)
def test_how_long_commits_are_kept_is_told_by_the_table(place, table, configuration, retention):
    log = create(
        table, {"delta.logRetentionDuration": configuration} if configuration else {"delta.appendOnly": "false"}
    )
    checkpoint(go_on(log, 1))
    for seconds, kept in ((retention * 0.99, commits(0)), (retention * 1.01, [])):
        place.age_commits(0, 1, seconds=seconds)
        table.open_table().cleanup_metadata()
        assert log_of(table) == [*kept, (1, "checkpoint"), (1, "commit")]


# --- a log is one log, wherever it lies


@pytest.mark.parametrize("written_in", ["memory", "a disk"])
def test_the_commits_of_a_log_are_read_the_same_on_a_disk_and_in_memory(root, written_in):
    with MemoryStore("interop").opened() as store:
        source, target = in_memory(store).root, on_disk(f"{root}/table").root
        if written_in == "a disk":
            source, target = target, source
        log = filled(source, 3)
        stats = json.dumps({"numRecords": 2, "minValues": {"c3": 5}, "nullCount": {"c1": 2}})
        log.commit({}, [AddedFile("b%C3%BC", 7, stats)], overwrite=True, txns={"app": 4, "x": -1})
        log.move()
        go_on(log, 5)
        copy(source, target)
        for version in range(6):
            ours, theirs = source.open_table(version), target.open_table(version)
            assert facts(theirs) == facts(ours)
            assert by_path(add_actions(theirs, True).to_pylist()) == by_path(add_actions(ours, True).to_pylist())
        assert theirs.transaction_version("x") == -1
        assert (str(theirs.metadata().id), theirs.schema()) == (log.table_id, ours.schema())
        there = go_on(opened(target), 6)
        checkpoint(there)
        put(source, 6, target.read(commit_name(6)))
        assert moved(log) == facts(there) == facts(target.open_table())


def copy(source: StorageRoot, target: StorageRoot) -> None:
    for name in source.child("_delta_log").list():
        target.child("_delta_log").write(name, source.child("_delta_log").read(name))
