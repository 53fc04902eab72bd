"""A table that is made of its commits alone is what delta-rs opens, and needs a log that is whole and ours."""

import json

import pytest

from lakelog.replication.storage.delta import delta_log, replayed_table
from lakelog.replication.storage.delta.checkpoint import HINT
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import commit_name, read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.replayed_table import replayed
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import opened
from lakelog.replication.storage.delta.table_opening import open_table
from lakelog.schemas import LOG, METADATA
from tests.storage.delta.tables import checkpoint, create, facts, filled, go_on, lose, of, put


@pytest.fixture
def folder(root):
    return StorageRoot.of(f"{root}/table")


def with_removals(root):
    log = filled(root, 3)
    for adds, removes, more in (
        ([AddedFile("b", 7), AddedFile("a", 8)], [AddedFile("f2", 2), AddedFile("of nobody", 1)], {}),
        ([AddedFile("f1", 99)], [], {"txns": {"app": 1, "other/ü": 2**62}}),
        ([AddedFile("c", 1)], [], {"overwrite": True, "expire": {"app"}, "txns": {"app": -5}}),
        ([], [], {}),
    ):
        log.commit({"who": "me"}, adds, removes, **more)
        log.move()


WHOLE = {
    "a new table": create,
    "files and txns": lambda root: filled(root, 3),
    "files that go and come again": with_removals,
    "a log of records": lambda root: DeltaLog.create(root, LOG),
    "a state table": lambda root: go_on(DeltaLog.create(root, METADATA), 1, 2),
    "a temporary file of a writer that died": lambda root: (
        filled(root, 1) and root.child("_delta_log").write(f".{2:020d}.json.{'0' * 32}.tmp", b"")
    ),
}


@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
def test_it_is_what_delta_rs_opens(folder, make):
    make(folder)
    made, handle = replayed(folder), folder.open_table()
    assert (made.version, made.table_id, made.handle) == (handle.version(), str(handle.metadata().id), None)
    asked = ("app", "other/ü", "unknown")
    assert [made.txns.get(app_id) for app_id in asked] == [handle.transaction_version(app_id) for app_id in asked]
    ours, theirs = made.files(), opened(handle).files()
    assert {file.name: file.size for file in ours} == {file.name: file.size for file in theirs}
    found, expected = made.protocol, handle.protocol()
    assert (found.min_reader_version, found.min_writer_version) == (
        expected.min_reader_version, expected.min_writer_version
    )  # fmt: skip
    assert {*(found.writer_features or ())} == {*(expected.writer_features or ())}
    assert list(made.tail) == [read_commit(folder, version) for version in range(handle.version() + 1)]


def test_a_log_is_opened_without_delta_rs_and_goes_on_as_another(folder, monkeypatch):
    filled(folder, 3)
    with monkeypatch.context() as patch:
        patch.setattr(LocalRoot, "open_table", lambda *_: pytest.fail("delta-rs has opened it"))
        log = DeltaLog.open(folder)
        assert facts(log) == of(3)
        assert facts(go_on(log, 4)) == of(4)
    assert facts(folder.open_table()) == of(4)


def test_its_first_checkpoint_deletes_no_commit_and_has_all_of_them(folder, monkeypatch):
    filled(folder, 3)
    log = go_on(DeltaLog.open(folder), 4)
    before = folder.child("_delta_log").list()
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 1)
    log.checkpoint_if_due()
    assert {*before} < {*folder.child("_delta_log").list()}
    lose(folder, 0, 1, 2, 3, 4)
    assert facts(log) == facts(folder.open_table()) == of(4)


def edited(root, version, edit):
    """Writes a commit again with other actions."""
    lines = [json.loads(line) for line in root.read(commit_name(version)).splitlines()]
    put(root, version, [edit(line) or line for line in lines])


def of_another_tool(line):
    return {"commitInfo": {}} if "commitInfo" in line else None


def after_another(line):
    return line.get("commitInfo", {}).update({"lakelog.follows": "another"})


def with_a_file(line):
    file = {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    return {**line, "add": file} if "metaData" in line else None


def written(name, content=b""):
    return lambda root: root.child("_delta_log").write(name, content)


RAISED = [
    {"commitInfo": {"lakelog.commit": "4", "lakelog.follows": None}},
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}},
]
OTHERS = {
    "no table": lambda root: root.delete_folder(),
    "a checkpoint": lambda root: checkpoint(DeltaLog.open(root)),
    "the hint at a checkpoint that is gone": written(HINT, b'{"version":2,"size":1}'),
    "the first commit is gone": lambda root: lose(root, 0),
    "a commit is gone": lambda root: lose(root, 2),
    "a file that Lakelog does not write": written(f"{3:020d}.crc"),
    "an empty commit": lambda root: put(root, 3, b""),
    "a torn commit": lambda root: put(root, 2, b'{"commitInfo":{'),
    "a torn first commit": lambda root: put(root, 0, b'{"commitInfo":{'),
    "a commit of another tool": lambda root: edited(root, 3, of_another_tool),
    "a table of another tool": lambda root: edited(root, 0, of_another_tool),
    "a commit after another one": lambda root: edited(root, 2, after_another),
    "another protocol": lambda root: put(root, 4, RAISED),
    "a first commit with files": lambda root: edited(root, 0, with_a_file),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_any_other_log_is_left_to_delta_rs(folder, change):
    filled(folder, 3)
    assert replayed(folder) is not None
    change(folder)
    assert replayed(folder) is None


def test_where_a_checkpoint_is_no_commit_is_read_for_nothing(folder, monkeypatch):
    checkpoint(filled(folder, 3))
    folder.child("_delta_log").delete(HINT)
    monkeypatch.setattr(replayed_table, "read_commit", lambda *_: pytest.fail("was read"))
    assert replayed(folder) is None


def test_a_table_in_an_object_store_is_left_to_delta_rs(s3_options):
    folder = StorageRoot.of("s3://bucket/replayed", s3_options)
    filled(folder, 1)
    assert replayed(folder) is None
    assert open_table(folder).version == 1
