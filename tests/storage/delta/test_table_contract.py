"""The contract of a table handle, for delta-rs and in memory. delta-rs is the reference."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from lakelog.replication.storage.delta.commit_reader import ACTIONS, AddedFile, commit_name, last_version, read_commit
from lakelog.replication.storage.delta.delta_log import NONCE, DeltaLog
from lakelog.replication.storage.delta.table_handle import add_actions
from lakelog.schemas import LOG
from tests.storage.delta.tables import (  # fmt: skip
    ARROW,
    BY_TYPE,
    SCHEMA,
    add,
    commit,
    create,
    facts,
    filled,
    go_on,
    lose,
    names,
    of,
    put,
    remove,
    seen,
)

# --- made and opened


def test_a_new_table_has_its_columns_and_nothing_else(table):
    for handle in (create(table), table.open_table()):
        assert facts(handle) == of(0)
        assert handle.schema() == SCHEMA


def test_a_table_is_who_it_is_until_it_is_made_again(table):
    first = create(table)
    assert go_on(table.open_table(), 1).metadata().id == first.metadata().id
    table.delete_folder()
    assert create(table).metadata().id != first.metadata().id


def checkpointed(table):
    filled(table, 3).create_checkpoint()
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


# --- commits


def test_a_commit_is_the_next_version_and_the_handle_stays_where_it_was(table):
    handle = filled(table, 1)
    commit(handle, add("f2", 2), txns={"app": 2})
    assert (facts(handle), last_version(table)) == (of(1), 2)
    handle.update_incremental()
    assert facts(handle) == of(2) == facts(table.open_table())


def test_of_two_handles_at_one_version_one_wins(table):
    one, other = filled(table, 1), table.open_table()
    commit(one, add("f2"), txns={"app": 2})
    for _ in range(2):
        with pytest.raises(CommitFailedError):
            commit(other, add("other"), txns={"app": 9})
    assert (facts(other), last_version(table)) == (of(1), 2)
    other.update_incremental()
    assert facts(other) == of(2)
    commit(other, add("f3"), txns={"app": 3})
    assert facts(table.open_table()) == of(3)


def test_a_handle_moves_over_many_commits_at_once(table):
    behind, far_behind = create(table), table.open_table()
    behind.update_incremental()
    go_on(table.open_table(), *range(1, 31))
    for handle in (behind, far_behind):
        handle.update_incremental()
        assert facts(handle) == of(30)


def test_a_commit_without_actions_counts(table):
    handle = filled(table, 1)
    commit(handle)
    handle.update_incremental()
    assert seen(handle) == (2, names(1))


def test_files_are_those_that_were_added_and_not_removed_the_newest_first(table):
    handle = filled(table, 3)
    commit(handle, add("b", 7), remove("f2"), add("a", 8), remove("of nobody"))
    handle.update_incremental()
    commit(handle, add("f1", 99))
    handle.update_incremental()
    for found in (handle, table.open_table()):
        assert seen(found) == (5, ["f1", "b", "a", "f3"])
        assert add_actions(found)["size_bytes"].to_pylist() == [99, 7, 8, 3]


def test_an_overwrite_removes_all_files_of_the_handle_s_version(table):
    handle = filled(table, 3)
    commit(handle, add("f2", 22), add("new"), mode="overwrite", txns={"app": 4})
    handle.update_incremental()
    for found in (handle, table.open_table()):
        assert facts(found) == (4, ["f2", "new"], 4, None)
        assert add_actions(found)["size_bytes"].to_pylist() == [22, 1]
    commit(handle, mode="overwrite")
    handle.update_incremental()
    assert seen(handle) == (5, [])


@pytest.mark.parametrize(
    ("actions", "mode"),
    [([add("f1"), remove("f1")], "append"), ([remove("f1")], "overwrite")],
    ids=["append", "overwrite"],
)
def test_what_contradicts_itself_is_not_committed(table, actions, mode):
    handle = filled(table, 1)
    with pytest.raises(ValueError, match=r"[Rr]emove"):
        commit(handle, *actions, mode=mode)
    assert last_version(table) == 1


def test_a_commit_as_a_file_says_what_was_given(table):
    handle, stats = create(table), json.dumps({"numRecords": 3, "minValues": {"c0": "ü"}})
    actions = [remove("gone", 5, False), add("a.parquet", 7, stats, False), add("b", 8), remove("unknown", 6)]
    cause = {"who": "me", "epoch": 3, "counts": {"add": 2}, "none": None}
    commit(handle, *actions, txns={"app": 2**62, "other/ü": -1}, cause=cause)
    found = read_commit(table, 1)
    assert [(f.name, f.size, f.stats, f.data_change) for f in found.adds] == [
        ("a.parquet", 7, stats, False),
        ("b", 8, "{}", True),
    ]
    assert [(f.name, f.size, f.data_change) for f in found.removes] == [("gone", 5, False), ("unknown", 6, True)]
    assert found.txns == {"app": 2**62, "other/ü": -1}
    assert {name: found.info[name] for name in cause} == cause
    assert found.info["operation"] == "WRITE"
    assert isinstance(found.info["timestamp"], int)


def test_an_overwrite_as_a_file_says_what_it_has_removed(table):
    handle = filled(table, 2)
    commit(handle, add("new", 9), mode="overwrite")
    found = read_commit(table, 3)
    assert found.adds == (AddedFile("new", 9),)
    assert [(f.name, f.size, f.data_change) for f in found.removes] == [("f2", 2, True), ("f1", 1, True)]


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


@pytest.mark.parametrize("name", ["a b", "ü", "100%", "%20", "a#?b", "folder/a b", "!$&'()+,-.:;=@_~", '"<>[]^`{|}*\\'])
def test_a_path_is_written_as_delta_escapes_it(table, name):
    handle = create(table)
    commit(handle, add(name))
    handle.update_incremental()
    safe = "/!$&'()+,-.:;=@_~"
    escaped = "".join(
        c if c.isascii() and (c.isalnum() or c in safe) else f"%{c.encode().hex('%').upper()}" for c in name
    )
    assert seen(handle) == (1, [escaped])
    assert read_commit(table, 1).adds == (AddedFile(escaped, 1),)
    commit(handle, remove(name))
    handle.update_incremental()
    assert seen(handle) == (2, [])


def test_a_log_commits_the_same_to_both(table):
    log, files = DeltaLog.create(table, LOG), [AddedFile("a.parquet", 5), AddedFile("b.parquet", 6)]
    for change in ({"adds": files, "txns": {"app": 1}}, {"adds": [AddedFile("c.parquet", 7)], "removes": files[:1]}):
        assert log.commit({"why": "test"}, **change) == log.version + 1
        log.move()
    first, second = read_commit(table, 1), read_commit(table, 2)
    assert (first.adds, first.removes, first.txns) == (tuple(files), (), {"app": 1})
    assert (second.adds, second.removes, second.txns) == ((AddedFile("c.parquet", 7),), tuple(files[:1]), {})
    assert [f.data_change for f in (*first.adds, *second.adds, *second.removes)] == [True, True, False, True]
    assert first.info[ACTIONS] == {"add": 2, "txn": 1, "remove": 0}
    assert len({first.info[NONCE], second.info[NONCE]}) == 2
    assert log.active_files() == [AddedFile("c.parquet", 7), files[1]]


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
    handle = filled(table, 0)
    for actions in ([], [add("a")], [add("b", 1, '{"numRecords": 1}')], [remove("a"), remove("b")]):
        commit(handle, *actions)
        handle.update_incremental()
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
    handle = create(table)
    commit(handle, add("with", 5, json.dumps(stats)), add("without", 6), add("some", 7, '{"numRecords": 0}'))
    handle.update_incremental()
    told, *others = add_actions(handle, True).to_pylist()
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    fixed = {"path": "with", "size_bytes": 5, "modification_time": 1700000000123, "num_records": 3}
    assert {name: value for name, value in told.items() if value is not None} == {
        **fixed, **{f"min.{name}": value for name, value in ends.items()},
        **{f"{end}.{BY_TYPE['timestamp']}": moment for end in ("min", "max")},
        **{f"null_count.{name}": value for name, value in nulls.items()},
    }  # fmt: skip
    assert [other["num_records"] for other in others] == [None, 0]
    assert {v for other in others for name, v in other.items() if name.startswith(("min.", "max.", "null"))} == {None}
    (whole, without, _) = add_actions(handle).to_pylist()
    assert (whole["min"], without["min"]) == (
        {f.name: told.get(f"min.{f.name}") for f in ARROW if f"min.{f.name}" in told},
        None,
    )


@pytest.mark.parametrize("stats", ["", "no JSON", "null", "[]", '{"numRecords": '])
def test_statistics_that_are_no_object_keep_from_the_whole_table(table, stats):
    """The commit that brings them lands, and its writer is told of an error."""
    handle = filled(table, 1)
    with pytest.raises(DeltaError):
        commit(handle, add("f2", 1, stats))
    assert last_version(table) == 2
    for read in (handle.update_incremental, table.open_table):
        with pytest.raises(DeltaError):
            read()
    assert facts(handle) == of(1)
