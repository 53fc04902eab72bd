"""Commits that a power cut left empty or torn: one clear error, and nobody builds on them."""

import json
from itertools import product
from pathlib import Path

import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.cluster import format_broker
from lakelog.replication.storage.delta import delta_log
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import commit_name, read_commit, read_commits_after
from lakelog.replication.storage.delta.delta_log import CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_handle import opened
from lakelog.replication.storage.delta.table_opening import open_version
from lakelog.replication.storage.log.log_txns import role_app_id
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_probe import storage_error
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import PRODUCERS
from tests.storage.logs import P0, fill, leo, new_log, offsets, request, send


def emptied(content):
    return content[:0]


def torn(content):
    return content[:200]


def torn_between_two_lines(content):
    return content[: content.rindex(b"\n", 0, len(content) - 1) + 1]


def zeros(content):
    return bytes(len(content))


HARMS = [emptied, torn, torn_between_two_lines, zeros]


@pytest.fixture
def log(root):
    made = new_log(root, P0)
    fill(made, P0, 2, 2, 2)
    return made


def harmed(root, version, harm):
    path = Path(root.path(commit_name(version)))
    content = path.read_bytes()
    path.write_bytes(harm(content))
    return path, content


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("back", [0, 1], ids=["the last", "the last but one"])
def test_nothing_is_read_or_appended_over_a_torn_commit(log, harm, back):
    """The state from before it stays known."""
    behind = ReplicaLog.open(log.root)
    fill(log, P0, 2, 2)
    path, content = harmed(log.root, log.current().version - back, harm)
    for _ in range(2):
        with pytest.raises(KafkaStorageException, match=f"{path.name}: this commit is empty or torn"):
            send(behind, request(P0, 1, producer_id=9))
    assert 6 <= behind.current().partition(P0).log_end_offset <= 8
    path.write_bytes(content)
    assert (leo(behind), offsets(behind)) == (10, list(range(10)))


@pytest.mark.parametrize("hole", [1, 2])
def test_no_state_is_built_over_a_commit_that_is_missing(log, monkeypatch, hole):
    """One of several roots may have shown an older version, and another one what follows later."""
    reader, last = DeltaLog.open(log.root), log.current().version
    shown = opened(open_version(log.root, last - hole - 1))._replace(tail=[read_commit(log.root, last)])
    with pytest.raises(KafkaStorageException, match=f"version {last - hole} is missing, though {last} is there"):
        DeltaLog(log.root, shown)
    fill(log, P0, 2)
    path = Path(log.root.path(commit_name(last)))
    path.rename(f"{path}.away")
    monkeypatch.setattr(delta_log, "reopen_table", lambda _: shown)
    files = reader.active_files()
    with pytest.raises(KafkaStorageException, match=f"version {last - hole} is missing, though {last} is there"):
        reader.move()
    assert (reader.version, reader.active_files()) == (last, files)
    Path(f"{path}.away").rename(path)
    monkeypatch.undo()
    assert reader.move() is not None
    assert reader.version == last + 1


@pytest.mark.parametrize(("harm", "back"), [(torn_between_two_lines, 0), *product((emptied, torn, zeros), (0, 1))])
def test_a_log_with_a_torn_commit_is_not_opened(log, harm, back):
    path, _ = harmed(log.root, log.current().version - back, harm)
    with pytest.raises(KafkaStorageException, match=f"{path.name}: this commit is empty or torn"):
        ReplicaLog.open(log.root)


@pytest.mark.parametrize("harm", HARMS)
def test_a_reader_hands_on_that_a_commit_is_torn(log, harm):
    reader = NewSegments(log.root, 1)
    reader.begin()
    fill(log, P0, 1)
    path, _ = harmed(log.root, log.current().version, harm)
    (gap,) = (row[-1] for row in reader.read())
    assert f"{path.name}: this commit is empty or torn" in gap
    assert reader.version == log.current().version


@pytest.mark.parametrize("harm", HARMS)
def test_ol_02_a_root_whose_log_ends_with_a_torn_commit_does_not_work(root, harm):
    """So its broker leads nothing, and others do; when the file is back, it works again."""
    storage = StorageRoot.of(root).child("broker-1")
    format_broker(storage, "cluster-id", 1)
    log = ReplicaLog.open(storage.child("log"))
    log.claim(1)
    path, content = harmed(log.root, log.current().version, harm)
    assert f"{path.name}: this commit is empty or torn" in storage_error(storage, "cluster-id", 1)
    path.write_bytes(content)
    assert storage_error(storage, "cluster-id", 1) is None


def test_a_state_table_is_not_written_over_an_empty_commit(root):
    """It would have the rows of the version before, and so would the next one."""
    table = StateTable.create_at(StorageRoot.of(root), PRODUCERS)
    other = StateTable.open_at(StorageRoot.of(root), PRODUCERS)
    rows = [{"name": "a", "producer_id": 1, "producer_epoch": 0, "owner": "me", "idle_ms": 0}]
    table.update({"why": "test"}, lambda _: rows)
    path, content = harmed(StorageRoot.of(root), 1, emptied)
    for _ in range(2):
        with pytest.raises(KafkaStorageException, match="empty or torn"):
            other.update({"why": "test"}, lambda found: found)
    with pytest.raises(KafkaStorageException, match="empty or torn"):
        StateTable.open_at(StorageRoot.of(root), PRODUCERS)
    path.write_bytes(content)
    assert other.refresh()
    assert other.rows == rows


def test_3_whether_a_torn_commit_is_ours_cannot_be_told(log, monkeypatch):
    delta = DeltaLog.open(log.root)

    def tears(root, name, _):
        root.child("_delta_log").write(name.split("/")[1], b"{")
        raise OSError("power cut")

    monkeypatch.setattr(LocalRoot, "put_if_absent", tears)
    with pytest.raises(CommitUnknown, match="power cut"):
        delta.commit({"why": "test"})


def test_a_commit_tells_how_much_it_does(log):
    delta = DeltaLog.open(log.root)
    version = delta.commit({"why": "test"}, [AddedFile("a.parquet", 1)], txns={role_app_id(P0): 9})
    assert read_commit(log.root, version).info["lakelog.actions"] == {"add": 1, "txn": 1, "remove": 0}
    delta.move()
    overwritten = read_commit(log.root, delta.commit({"why": "test"}, overwrite=True))
    assert overwritten.info["lakelog.actions"] == {"add": 0, "txn": 0, "remove": 4}
    assert len(overwritten.removes) == 4


ADD = {"path": "a.parquet", "size": 1, "dataChange": True, "stats": None}


def test_a_commit_that_is_too_deep_is_named(root):
    storage = StorageRoot.of(root)
    storage.child("_delta_log").write("00000000000000000003.json", b"[" * 100_000)
    with pytest.raises(CorruptRecordException, match=r"00000000000000000003\.json: this commit is empty or torn"):
        read_commit(storage, 3)


@pytest.mark.parametrize(
    "actions",
    [
        {},
        [],
        {"add": {**ADD, "size": "1"}},
        {"add": {**ADD, "size": -1}},
        {"add": {**ADD, "path": 7}},
        {"add": {**ADD, "stats": {"numRecords": 1}}},
        {"add": {"size": 1}},
        {"add": None},
        {"remove": {"path": None}},
        {"txn": {"appId": "a", "version": "x"}},
        {"txn": {"appId": None, "version": 1}},
        {"txn": {"appId": "a", "version": float("inf")}},
        {"txn": {"appId": "a", "version": 2**63}},
        {"commitInfo": {"why": ["append"]}},
        {"commitInfo": "text"},
        {"commitInfo": {"lakelog.actions": {"add": 1}}},
    ],
)
def test_a_commit_that_makes_no_sense_is_named(root, actions):
    storage = StorageRoot.of(root)
    storage.child("_delta_log").write("00000000000000000003.json", json.dumps(actions).encode())
    with pytest.raises(CorruptRecordException, match=r"00000000000000000003\.json: this commit is empty or torn"):
        read_commit(storage, 3)


def test_a_commit_of_another_tool_is_read(root):
    storage = StorageRoot.of(root)
    content = json.dumps({"commitInfo": {"operation": "WRITE"}}) + "\n" + json.dumps({"add": ADD})
    storage.child("_delta_log").write("00000000000000000003.json", content.encode())
    assert read_commit(storage, 3).adds == (AddedFile("a.parquet", 1),)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_commits_that_are_read_at_the_same_time_end_at_the_first_that_is_missing_or_torn(log, at_once):
    newest = DeltaLog.open(log.root).version
    versions = [commit.version for commit in read_commits_after(log.root, 0, at_once)]
    assert versions == list(range(1, newest + 1))
    harmed(log.root, newest, torn)
    with pytest.raises(CorruptRecordException, match=commit_name(newest)):
        read_commits_after(log.root, newest - 2, at_once)
    Path(log.root.path(commit_name(newest - 1))).unlink()
    assert [commit.version for commit in read_commits_after(log.root, newest - 3, at_once)] == [newest - 2]
