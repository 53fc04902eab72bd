"""The contract of a table handle for torn or missing commits, for delta-rs and in memory.

delta-rs is the reference.
"""

import pytest
from deltalake.exceptions import DeltaError, TableNotFoundError

from lakelog.replication.storage.delta.commit_reader import commit_name
from tests.storage.delta.tables import (
    add,
    commit,
    commits,
    facts,
    filled,
    go_on,
    log_of,
    lose,
    moved,
    names,
    of,
    put,
    seen,
    stays,
)

# --- commits that are empty, torn or odd


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"  ", b"{}\n", b'{"add":null}', b'{"commitInfo":{}}', b'{"new":{"a":1}}']
)
def test_a_newest_commit_that_says_nothing_has_changed_nothing(table, content):
    handle = filled(table, 2)
    put(table, 3, content)
    handle.update_incremental()
    for found in (handle, table.open_table()):
        assert facts(found) == (3, names(2), 2, None)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(bytes(200), id="zeros"),
        pytest.param(b'{"commitInfo":{}}\n{"add":{"path":"f3","si', id="torn"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"5", id="a number"),
        pytest.param(b'{"add":{"path":"f3"}}', id="half a file"),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_over_a_torn_commit_nobody_moves(table, content, version):
    filled(table, 3)
    handle = table.open_table(1)
    put(table, version, content)
    assert stays(handle)
    with pytest.raises(DeltaError):
        table.open_table()
    assert facts(table.open_table(1)) == of(1)


def test_a_commit_that_is_torn_between_two_lines_has_done_less(table):
    handle = filled(table, 1)
    commit(handle, add("f2", 2), add("f3", 3), txns={"app": 2})
    lines = table.read(commit_name(2)).splitlines(keepends=True)
    put(table, 2, b"".join(lines[:2]))
    handle.update_incremental()
    for found in (handle, table.open_table()):
        assert facts(found) == (2, ["f2", "f1"], 1, None)


def test_a_commit_needs_no_newline_at_its_end_and_may_have_two_actions_in_a_line(table):
    filled(table, 1)
    put(table, 2, b'{"commitInfo":{},"txn":{"appId":"app","version":5}}\n\n{"txn":{"appId":"unknown","version":6}}')
    assert facts(table.open_table()) == (2, ["f1"], 5, 6)


# --- commits that are missing


def test_a_hole_in_the_log_is_seen_by_all_who_look(table):
    newest = filled(table, 6)
    below, at = table.open_table(3), table.open_table(5)
    lose(table, 5)
    assert all(stays(handle, "gap") for handle in (below, at, newest))
    for version in (None, 6):
        with pytest.raises(DeltaError, match="gap"):
            table.open_table(version)
    assert facts(table.open_table(4)) == of(4)


def test_a_hole_right_after_the_handle_s_version_is_seen(table):
    filled(table, 6)
    handle = table.open_table(2)
    lose(table, 0, 1, 2, 3, 4)
    assert stays(handle, "gap")


def test_who_has_read_the_first_commits_goes_on_without_them_and_nobody_else_begins(table):
    handle = filled(table, 3)
    lose(table, 0, 1)
    handle.update_incremental()
    assert seen(handle) == (3, names(3))
    go_on(handle, 4)
    assert seen(handle) == (4, names(4))
    with pytest.raises(DeltaError, match="metadata"):
        table.open_table()


def test_where_the_newest_commit_has_vanished_its_reader_can_do_nothing(table):
    handle = filled(table, 3)
    lose(table, 3)
    assert stays(handle, "Unexpected state")
    with pytest.raises(DeltaError, match="Invalid table version"):
        commit(handle, add("f4"))
    with pytest.raises(DeltaError):
        handle.create_checkpoint()
    handle.cleanup_metadata()
    assert log_of(table) == commits(0, 1, 2)
    assert facts(table.open_table()) == of(2)


def test_a_version_that_was_used_again_is_taken_for_what_it_was(table):
    """Its files are of the commit that was there before, what is told by `txn` is of the one that is there now."""
    handle = filled(table, 3)
    lose(table, 2, 3)
    other = go_on(table.open_table(), 12, 13, 14)
    assert moved(handle) == (4, ["f14", *names(3)], 14, None)
    assert seen(other) == (4, ["f14", "f13", "f12", "f1"])


def test_a_whole_log_that_has_vanished_is_no_news_to_its_reader_and_no_table_to_others(table):
    handle = filled(table, 3)
    table.child("_delta_log").delete_folder()
    handle.update_incremental()
    assert seen(handle) == (3, names(3))
    with pytest.raises(DeltaError, match="Invalid table version"):
        commit(handle, add("f4"))
    with pytest.raises(DeltaError):
        handle.create_checkpoint()
    handle.cleanup_metadata()
    with pytest.raises(TableNotFoundError):
        table.open_table()
    assert log_of(table) == []


@pytest.mark.parametrize(("number", "told"), [(1, "Unexpected state"), (3, None), (4, None)])
def test_a_table_that_was_made_again_is_taken_for_the_old_one(table, number, told):
    handle = filled(table, 3)
    table.child("_delta_log").delete_folder()
    other = filled(table, number)
    assert stays(handle, told) if told else moved(handle) == of(number)
    assert handle.metadata().id != other.metadata().id


# --- what is told by `txn`


def test_a_txn_is_read_from_the_log_whenever_it_is_asked_for_the_newest_commit_first(table):
    """Also one that was asked for before: only what is in the handle's log still can be told."""
    handle = filled(table, 3)
    commit(handle, txns={"other": 7})
    handle.update_incremental()
    assert [handle.transaction_version(name) for name in ("app", "other", "unknown")] == [3, 7, None]
    lose(table, 2)
    assert [handle.transaction_version(name) for name in ("app", "other")] == [3, 7]
    lose(table, 3)
    assert handle.transaction_version("other") == 7
    for name in ("app", "unknown"):
        with pytest.raises(DeltaError):
            handle.transaction_version(name)
    put(table, 3, b'{"txn":{"appId":"app","ver')
    with pytest.raises(DeltaError):
        handle.transaction_version("app")


def test_a_txn_may_fall(table):
    handle = filled(table, 3)
    for version in (1, -5):
        commit(handle, txns={"app": version})
        assert moved(handle)[2] == table.open_table().transaction_version("app") == version


def test_a_handle_tells_the_txns_of_its_version(table):
    filled(table, 3)
    assert [table.open_table(v).transaction_version("app") for v in range(4)] == [None, 1, 2, 3]
