"""The contract of a table: what a log commits is what delta-rs reads, on disk, and what the handle in memory reads."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError, TableNotFoundError

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.delta import commit_format
from lakelog.replication.storage.delta.commit import NONCE, AddedFile
from lakelog.replication.storage.delta.commit_format import (
    ACTIONS,
    commit_name,
    last_version,
    read_commit,
)
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.table_handle import add_actions
from lakelog.replication.storage.delta.table_opening import file_statistics
from tests.storage.delta.tables import (  # fmt: skip
    ARROW,
    BY_TYPE,
    SCHEMA,
    at,
    checkpoint,
    create,
    facts,
    filled,
    go_on,
    lose,
    moved,
    names,
    of,
    opened,
    put,
    seen,
)

# --- made and opened


def test_a_new_table_has_its_columns_and_nothing_else(table):
    assert facts(create(table)) == of(0)
    handle = table.open_table()
    assert (facts(handle), handle.schema()) == (of(0), SCHEMA)
    assert (handle.protocol().min_reader_version, handle.protocol().min_writer_version) == (1, 2)


def test_a_table_is_who_it_is_until_it_is_made_again(table):
    first = create(table)
    assert go_on(opened(table), 1).table_id == first.table_id
    table.delete_folder()
    assert create(table).table_id != first.table_id


def checkpointed(table):
    checkpoint(filled(table, 3))
    lose(table, 0, 1, 2, 3)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(lambda table: filled(table, 2), id="a whole one"),
        pytest.param(lambda table: lose(table, filled(table, 2) and 0), id="the first commit is gone"),
        pytest.param(checkpointed, id="a checkpoint"),
        pytest.param(lambda table: put(table, 5, b""), id="an empty commit"),
    ],
)
def test_no_table_is_made_over_what_is_left_of_another(table, before):
    before(table)
    log = table.child("_delta_log").list()
    with pytest.raises(DeltaError):
        create(table)
    assert table.child("_delta_log").list() == log


@pytest.mark.parametrize("version", [None, 0, 3])
def test_where_no_table_is_none_is_opened(table, version):
    table.write("a file", b"")
    table.child("_delta_log").write("a file", b"")
    for root in (table, table.child("gone")):
        with pytest.raises(TableNotFoundError):
            root.open_table(version)
    assert table.list() == ["_delta_log", "a file"]


def test_a_table_is_opened_at_any_version_that_is_there(table):
    filled(table, 3)
    assert [facts(table.open_table(version)) for version in range(4)] == [of(version) for version in range(4)]
    assert facts(table.open_table()) == of(3)
    with pytest.raises(DeltaError):
        table.open_table(4)


RAISED = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}


@pytest.mark.parametrize("protocol", [RAISED, {"minReaderVersion": 1, "minWriterVersion": 3}])
def test_a_table_whose_protocol_another_tool_has_raised_is_refused(table, protocol):
    """A later feature, such as deletion vectors or change data, changes what a commit means."""
    log = filled(table, 1)
    put(table, 2, [{"commitInfo": {}}, {"protocol": protocol}])
    said = f"reader {protocol['minReaderVersion']} and writer {protocol['minWriterVersion']}"
    for act in (log.move, log.move, lambda: DeltaLog.open(table)):
        with pytest.raises(KafkaStorageException, match=said):
            act()
    assert facts(log) == of(1)


def test_other_settings_of_another_tool_are_read_and_change_nothing(table):
    log = filled(table, 1)
    lines = [json.loads(line) for line in table.read(commit_name(0)).splitlines()]
    (made,) = (line["metaData"] for line in lines if "metaData" in line)
    put(table, 2, [{"commitInfo": {}}, {"metaData": {**made, "name": "another"}}])
    assert log.move() is None
    assert facts(go_on(log, 3)) == (3, ["f1", "f3"], 3, None)


# --- commits


def test_a_commit_is_the_next_version_and_the_log_stays_where_it_was(table):
    log, other = filled(table, 1), opened(table)
    log.commit({}, [AddedFile("f2", 2)], txns={"app": 2})
    assert (facts(log), last_version(table)) == (of(1), 2)
    assert [moved(found) for found in (log, other)] == [of(2)] * 2


def test_of_two_writers_at_one_version_one_wins(table):
    one, other = filled(table, 1), opened(table)
    one.commit({}, [AddedFile("f2", 1)], txns={"app": 2})
    for _ in range(2):
        with pytest.raises(CommitConflict):
            other.commit({}, [AddedFile("other", 1)], txns={"app": 9})
    assert (facts(other), last_version(table)) == (of(1), 2)
    assert moved(other) == of(2)
    go_on(other, 3)
    assert facts(table.open_table()) == of(3)


def test_a_log_moves_over_many_commits_at_once_and_tells_them(table):
    behind = create(table)
    go_on(opened(table), *range(1, 31))
    assert [commit.adds[0].name for commit in behind.move()] == [f"f{number}" for number in range(1, 31)]
    assert moved(behind) == of(30)
    assert behind.move() == []


def test_a_commit_that_has_just_been_written_is_not_read_again(table, monkeypatch):
    log = filled(table, 1)
    version = log.commit({}, [AddedFile("f2", 2)], txns={"app": 2})
    with monkeypatch.context() as patched:
        patched.setattr(commit_format, "read_commit", lambda *_: pytest.fail("was read"))
        own = log.move_own()
    assert own == read_commit(table, version)
    assert moved(log) == of(2)


def test_a_commit_without_actions_counts(table):
    log = filled(table, 1)
    log.commit({})
    assert moved(log) == (2, names(1), 1, None)


def test_files_are_those_that_were_added_and_not_removed(table):
    log = filled(table, 3)
    log.commit({}, [AddedFile("b", 7), AddedFile("a", 8)], [AddedFile("f2", 2), AddedFile("of nobody", 1)])
    log.move()
    log.commit({}, [AddedFile("f1", 99)])
    assert moved(log)[:2] == (5, ["a", "b", "f1", "f3"])
    for found in (log, opened(table)):
        assert {file.name: file.size for file in found.active_files()} == {"f1": 99, "b": 7, "a": 8, "f3": 3}


def test_an_overwrite_removes_all_files_of_the_log_s_version(table):
    log = filled(table, 3)
    log.commit({}, [AddedFile("f2", 22), AddedFile("new", 1)], overwrite=True, txns={"app": 4})
    assert moved(log) == (4, ["f2", "new"], 4, None)
    assert {file.name: file.size for file in opened(table).active_files()} == {"f2": 22, "new": 1}
    log.commit({}, overwrite=True)
    assert moved(log) == (5, [], 4, None)


def test_a_commit_as_a_file_says_what_was_given(table):
    log, stats = create(table), json.dumps({"numRecords": 3, "minValues": {"c0": "ü"}})
    adds = [AddedFile("a.parquet", 7, stats), AddedFile("b", 8)]
    cause = {"who": "me", "epoch": 3, "counts": {"add": 2}, "none": None}
    log.commit(cause, adds, txns={"app": 2**62, "other/ü": -1})
    found = read_commit(table, 1)
    assert [(f.name, f.size, f.stats, f.data_change) for f in found.adds] == [
        ("a.parquet", 7, stats, True),
        ("b", 8, "{}", True),
    ]
    assert found.txns == {"app": 2**62, "other/ü": -1}
    assert {name: found.info[name] for name in cause} == cause
    assert found.info["operation"] == "WRITE"
    assert isinstance(found.info["timestamp"], int)
    assert found.info[ACTIONS] == {"add": 2, "txn": 2, "remove": 0}
    assert found.info[NONCE] != read_commit(table, go_on(opened(table), 2).version).info[NONCE]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        pytest.param({}, [False, True], id="rows go, and the rest is rewritten"),
        pytest.param({"data_change": False}, [False, False], id="the same rows in other files"),
        pytest.param({"overwrite": True}, [True, True], id="all rows are new"),
    ],
)
def test_what_a_commit_that_removes_files_says_of_its_rows(table, options, flags):
    log = filled(table, 1)
    given = {} if "overwrite" in options else {"removes": [AddedFile("f1", 1)]}
    log.commit({}, [AddedFile("new", 1)], **given, **options)
    found = read_commit(table, 2)
    assert [(f.name, f.size) for f in found.removes] == [("f1", 1)]
    assert [f.data_change for f in (*found.adds, *found.removes)] == flags


def test_the_first_commit_as_a_file_says_that_a_table_was_made(table):
    create(table, {"delta.logRetentionDuration": "interval 7 days", "delta.checkpointInterval": "7"})
    lines = [json.loads(line) for line in table.read(commit_name(0)).splitlines()]
    assert [next(iter(line)) for line in lines] == ["commitInfo", "protocol", "metaData"]
    assert lines[0]["commitInfo"]["operation"] == "CREATE TABLE"
    assert lines[1]["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    made = lines[2]["metaData"]
    assert json.loads(made["schemaString"]) == json.loads(SCHEMA.to_json())
    assert (made["name"], made["description"], made["format"]["provider"]) == ("name", "description", "parquet")
    assert made["configuration"] == {"delta.logRetentionDuration": "interval 7 days", "delta.checkpointInterval": "7"}


def test_a_version_that_is_gone_is_not_built_on(table):
    log = filled(table, 3)
    lose(table, 3)
    with pytest.raises(CommitUnknown, match="version 3 is gone"):
        log.commit({}, [AddedFile("f4", 1)])
    assert last_version(table) == 2


# --- files and their statistics


def test_the_files_and_their_statistics_are_arrow_tables_of_one_schema(table):
    ranged = [BY_TYPE[name] for name in ("string", "boolean", "int", "bigint", "timestamp")]
    struct = pa.struct([f for f in ARROW if f.name in ranged])
    nulls = pa.struct([(name, pa.int64()) for name in ARROW.names])
    fixed = [("path", pa.string()), ("size_bytes", pa.int64()), ("modification_time", pa.int64())]
    start = [*(pa.field(*f, nullable=False) for f in fixed), pa.field("num_records", pa.int64())]
    whole = pa.schema([*start, ("null_count", nulls), ("min", struct), ("max", struct)])
    flat = pa.schema([
        *start, *((f"null_count.{f.name}", f.type) for f in nulls),
        *((f"{end}.{f.name}", f.type) for end in ("min", "max") for f in struct),
    ])  # fmt: skip
    log, gone = filled(table, 0), [AddedFile("a", 1), AddedFile("b", 1)]
    for adds, removes in (([], []), (gone[:1], []), ([AddedFile("b", 1, '{"numRecords": 1}')], []), ([], gone)):
        log.commit({}, adds, removes)
        log.move()
        handle = table.open_table()
        assert types(add_actions(handle)) == types(whole)
        assert types(add_actions(handle, True)) == types(flat)


def types(found):
    schema = found.schema if isinstance(found, pa.Table) else found
    return [(f.name, without_null(f.type), f.nullable) for f in schema]


def without_null(kind):
    return pa.struct([(f.name, f.type) for f in kind]) if pa.types.is_struct(kind) else kind


def test_statistics_are_told_as_values_of_the_columns(table):
    ends = {BY_TYPE["int"]: 1, BY_TYPE["bigint"]: 2**40, BY_TYPE["string"]: "ü", BY_TYPE["boolean"]: False}
    stamps = {BY_TYPE["timestamp"]: "2026-01-02T03:04:05.678Z"}
    odd = {BY_TYPE["binary"]: "x", "of nobody": 1}
    nulls = {BY_TYPE["binary"]: 2, BY_TYPE["map<string,string>"]: 0}
    stats = {"numRecords": 3, "minValues": {**ends, **stamps, **odd}, "maxValues": stamps, "nullCount": nulls}
    log = create(table)
    files = AddedFile("with", 5, json.dumps(stats)), AddedFile("without", 6), AddedFile("some", 7, '{"numRecords": 0}')
    log.commit({}, files)
    log.move()
    told, *others = file_statistics(log.root, log.version)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert isinstance(told.pop("modification_time"), int)
    assert {name: value for name, value in told.items() if value is not None} == {
        "path": "with", "size_bytes": 5, "num_records": 3,
        **{f"min.{name}": value for name, value in ends.items()},
        **{f"{end}.{BY_TYPE['timestamp']}": moment for end in ("min", "max")},
        **{f"null_count.{name}": value for name, value in nulls.items()},
    }  # fmt: skip
    assert [other["num_records"] for other in others] == [None, 0]
    assert {v for other in others for name, v in other.items() if name.startswith(("min.", "max.", "null"))} == {None}
    (whole, without, _) = add_actions(table.open_table()).to_pylist()
    assert (whole["min"], without["min"]) == (
        {f.name: told.get(f"min.{f.name}") for f in ARROW if f"min.{f.name}" in told},
        None,
    )


@pytest.mark.parametrize("stats", ["", "no JSON", "null", "[]", '{"numRecords": '])
def test_statistics_that_are_no_object_keep_from_the_whole_table(table, stats):
    """Another tool has written them."""
    filled(table, 1)
    file = {"path": "f2", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True, "stats": stats}
    put(table, 2, [{"commitInfo": {}}, {"add": file}])
    with pytest.raises(DeltaError):
        table.open_table()
    assert seen(at(table, 1)) == (1, names(1))
