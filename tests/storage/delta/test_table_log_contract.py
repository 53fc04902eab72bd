"""The contract of a table with torn or missing commits: what delta-rs and the handle in memory read, and what a log
does that has read it before."""

import pytest
from deltalake.exceptions import DeltaError, TableNotFoundError

from lakelog.replication.errors import InconsistentBrokerRootException, KafkaStorageException
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from tests.storage.delta.tables import (
    at,
    checkpoint,
    facts,
    filled,
    go_on,
    log_of,
    lose,
    moved,
    names,
    of,
    opened,
    put,
    seen,
)

# --- commits that are empty, torn or odd


@pytest.mark.parametrize("content", [b'{"commitInfo":{}}', b'{"commitInfo":{}}\n\n', b'{"new":{"a":1}}'])
def test_a_newest_commit_that_says_nothing_has_changed_nothing(table, content):
    log = filled(table, 2)
    put(table, 3, content)
    for found in (log, opened(table)):
        assert moved(found) == (3, names(2), 2, None)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  ", b"{}\n", b'{"add":null}'])
def test_a_commit_without_any_action_is_torn_to_a_log_and_nothing_to_delta(table, content):
    log = filled(table, 2)
    put(table, 3, content)
    with pytest.raises(KafkaStorageException, match="torn"):
        log.move()
    assert facts(log) == of(2)
    assert facts(table.open_table()) == (3, names(2), 2, None)


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
    log = at(table, 1)
    put(table, version, content)
    with pytest.raises(KafkaStorageException, match="torn"):
        log.move()
    assert facts(log) == of(1)
    with pytest.raises(DeltaError):
        table.open_table()
    assert facts(table.open_table(1)) == of(1)


def test_a_commit_that_is_torn_between_two_lines_has_done_less_to_delta_and_stops_a_log(table):
    log = filled(table, 1)
    opened(table).commit({}, [AddedFile("f2", 2), AddedFile("f3", 3)], txns={"app": 2})
    lines = table.read(commit_name(2)).splitlines(keepends=True)
    put(table, 2, b"".join(lines[:2]))
    with pytest.raises(KafkaStorageException, match="torn"):
        log.move()
    assert facts(table.open_table()) == (2, ["f1", "f2"], 1, None)


def test_a_commit_needs_no_newline_at_its_end_and_may_have_two_actions_in_a_line(table):
    log = filled(table, 1)
    put(table, 2, b'{"commitInfo":{},"txn":{"appId":"app","version":5}}\n\n{"txn":{"appId":"unknown","version":6}}')
    assert moved(log) == (2, ["f1"], 5, 6)


# --- commits that are missing


def test_a_hole_in_the_log_is_seen_by_all_who_open_it(table):
    filled(table, 6)
    below, before = at(table, 3), at(table, 5)
    lose(table, 5)
    for version in (None, 6):
        with pytest.raises(DeltaError, match="gap"):
            table.open_table(version)
    assert facts(table.open_table(4)) == of(4)
    assert moved(below) == of(4), "what comes after a hole does not follow"
    assert before.move() is None
    for found in (before, DeltaLog.open(table)):
        assert facts(found) == of(4), "it is opened below the hole"


def test_where_all_up_to_the_version_is_gone_nothing_is_believed(table):
    filled(table, 6)
    log = at(table, 2)
    lose(table, 0, 1, 2, 3, 4)
    with pytest.raises(KafkaStorageException, match="cannot be read"):
        log.move()
    assert seen(log) == (2, names(2))


def test_who_has_read_the_first_commits_goes_on_without_them_and_nobody_else_begins(table):
    log = filled(table, 3)
    lose(table, 0, 1)
    log.move()
    assert seen(go_on(log, 4)) == (4, names(4))
    with pytest.raises(DeltaError, match="metadata"):
        table.open_table()


def test_where_the_newest_commit_has_vanished_its_reader_begins_anew(table):
    log = filled(table, 3)
    lose(table, 3)
    with pytest.raises(CommitUnknown, match="version 3 is gone"):
        log.commit({}, [AddedFile("f4", 1)])
    handle = table.open_table(2)
    handle.cleanup_metadata()
    assert log_of(table) == [(0, "commit"), (1, "commit"), (2, "commit")]
    assert log.move() is None
    assert facts(log) == facts(table.open_table()) == of(2)


def test_a_version_that_was_used_again_is_read_anew(table):
    log = filled(table, 3)
    lose(table, 2, 3)
    other = go_on(opened(table), 12, 13, 14)
    assert log.move() is None
    assert moved(log) == facts(other) == (4, ["f1", "f12", "f13", "f14"], 14, None)


def test_a_whole_log_that_has_vanished_is_an_error_to_its_reader_and_no_table_to_others(table):
    log = filled(table, 3)
    table.child("_delta_log").delete_folder()
    with pytest.raises(KafkaStorageException, match="cannot be read"):
        log.move()
    assert seen(log) == (3, names(3))
    with pytest.raises(CommitUnknown):
        log.commit({}, [AddedFile("f4", 1)])
    with pytest.raises(TableNotFoundError):
        table.open_table()
    assert log_of(table) == []


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_table_that_was_made_again_is_read_anew(table, number):
    log = filled(table, 3)
    table.child("_delta_log").delete_folder()
    other = filled(table, number)
    assert log.move() is None
    assert (facts(log), log.table_id) == (of(number), other.table_id)


def lose_the_newest(table):
    lose(table, 3)


def use_versions_again(table):
    lose(table, 2, 3)
    go_on(opened(table), 12, 13, 14)


def make_again(table):
    table.child("_delta_log").delete_folder()
    filled(table, 4)


@pytest.mark.parametrize("happens", [lose_the_newest, use_versions_again, make_again])
def test_li_04_who_holds_a_table_does_not_go_on_without_what_it_has_seen(table, happens):
    """An older copy of its root may lie there now, or another root."""
    log = filled(table, 3)
    log.hold()
    happens(table)
    for _ in range(2):
        with pytest.raises(InconsistentBrokerRootException, match="version 3 is gone or is another one"):
            log.move()
    assert seen(log) == (3, names(3))


def test_who_holds_a_table_goes_on_where_another_process_has_cleaned_up(table):
    log = filled(table, 3)
    log.hold()
    checkpoint(go_on(opened(table), 4, 5))
    lose(table, 0, 1, 2, 3, 4)
    assert log.move() is None
    assert seen(log) == (5, names(5))


# --- what is told by `txn`


def test_a_handle_reads_a_txn_from_the_log_whenever_it_is_asked_the_newest_commit_first(table):
    """Also one that was asked for before: only what is in the handle's log still can be told."""
    log = filled(table, 3)
    log.commit({}, txns={"other": 7})
    handle = table.open_table()
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


def test_a_log_knows_the_txns_of_the_commits_that_it_has_replayed(table):
    log = opened(filled(table, 1).root)
    go_on(log, 2)
    lose(table, 1)
    assert log.transaction_version("app") == 2


def test_a_txn_may_fall(table):
    log = filled(table, 3)
    for version in (1, -5):
        log.commit({}, txns={"app": version})
        assert moved(log)[2] == version


def test_a_handle_tells_the_txns_of_its_version(table):
    filled(table, 3)
    assert [table.open_table(v).transaction_version("app") for v in range(4)] == [None, 1, 2, 3]
