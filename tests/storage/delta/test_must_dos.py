"""The eight rules of safe commits with delta-rs, each with tests: storage does what delta-rs leaves out."""

import errno
import json
import os
import re

import pytest
from deltalake import DeltaTable

from lakelog.replication.config import Config
from lakelog.replication.errors import CorruptRecordException, KafkaStorageException, LakelogException
from lakelog.replication.protocol.partition_log import FOLLOWER, Role, role_version
from lakelog.replication.storage.cluster import format_broker, format_cluster
from lakelog.replication.storage.delta import delta_log, storage_root
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import (
    commit_name,
    last_version,
    read_commit,
)
from lakelog.replication.storage.delta.delta_log import CommitConflict, CommitUnknown, DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_txns import role_app_id
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import read_records, write_segment
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.schemas import CLUSTER, LOG
from tests.processes import SPAWN, race
from tests.storage.logs import P0, P1, fill, header, lead, log_rows, new_log, request, send, start_at, truncate

HOURS = {"hours": 1, "hour": 1, "days": 24, "day": 24}


@pytest.fixture
def log(root):
    return new_log(root, P0, P1)


@pytest.fixture
def delta(root):
    return DeltaLog.create(StorageRoot.of(root), CLUSTER)


def active(log):
    return set(DeltaLog.open(log.root).active_files())


def test_1_a_stale_handle_is_refused_and_nothing_is_rebased(log):
    stale, fresh = DeltaLog.open(log.root), DeltaLog.open(log.root)
    files = [write_segment(log.root, 1, log_rows(), [header()]).file for _ in range(2)]
    won = fresh.commit({"why": "first"}, [files[0]])
    with pytest.raises(CommitConflict, match=f"version {won} is another writer's"):
        stale.commit({"why": "second"}, [files[1]])
    assert last_version(log.root) == won
    assert active(log) == {files[0]}


def test_1_a_handle_that_is_many_versions_behind_is_refused(delta):
    stale, fresh = DeltaLog.open(delta.root), DeltaLog.open(delta.root)
    for _ in range(3):
        fresh.commit({})
        fresh.move()
    with pytest.raises(CommitConflict):
        stale.commit({}, overwrite=True)
    assert last_version(delta.root) == 3


def test_2_every_table_keeps_its_log_for_an_hour_and_metadata_for_a_week(root):
    cluster, broker = StorageRoot.of(f"{root}/cluster"), StorageRoot.of(f"{root}/broker-1")
    format_broker(broker, format_cluster(cluster, Config()), 1)
    BrokerTable.open_or_create(cluster, 1)
    folders = ["metadata", "topics", "producers", "groups", "cluster", "brokers/1"]
    tables = [cluster.child(name) for name in folders] + [broker.child(name) for name in ("log", "replicas", "cluster")]
    hours = {}
    for table in tables:
        settings = DeltaTable(table.uri).metadata().configuration
        number, unit = re.fullmatch(r"interval (\d+) (\w+)", settings["delta.logRetentionDuration"]).groups()
        hours[table.uri.removeprefix(root)] = int(number) * HOURS[unit]
        expires = "delta.setTransactionRetentionDuration" in settings
        assert expires == (table.uri == broker.child("log").uri), "only facts of stopped replicas have a time"
    assert min(hours.values()) >= 1, hours
    assert hours["/cluster/metadata"] == 7 * 24


def commits_then(*events):
    """`put_if_absent` that writes or not, lets something happen, and raises what a lost reply raises."""
    real = LocalRoot.put_if_absent

    def patched(self, name, content):
        stamp = None
        for event in events:
            if event == "ours":
                stamp = real(self, name, content)
            elif event == "clean-up":
                os.remove(self.path(commit_name(int(name.rpartition("/")[2][:20]) - 1)))
            elif event == "error":
                raise KafkaStorageException(f"{name}: connection reset")
        return stamp

    return patched


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        pytest.param(["ours"], 1, id="an answer at once is believed"),
        pytest.param(["ours", "error"], 1, id="the reply was lost, the commit has landed"),
        pytest.param(["ours", "ours"], 1, id="it was sent again, and its own first one refuses it"),
        pytest.param(["error"], CommitUnknown, id="nothing is there, and it may yet land"),
        pytest.param(["ours", "clean-up", "error"], CommitUnknown, id="it fell into the hole of a clean-up"),
    ],
)
def test_3_a_refusal_is_not_believed_before_the_next_version_was_looked_at(delta, monkeypatch, events, outcome):
    monkeypatch.setattr(LocalRoot, "put_if_absent", commits_then(*events))
    if outcome is CommitUnknown:
        with pytest.raises(CommitUnknown, match="version"):
            delta.commit({"why": "test"})
    else:
        assert delta.commit({"why": "test"}) == outcome
        assert read_commit(delta.root, outcome).info["why"] == "test"


def test_3_a_refusal_with_a_commit_of_somebody_else_is_a_conflict(delta, monkeypatch):
    DeltaLog.open(delta.root).commit({"why": "theirs"})
    monkeypatch.setattr(LocalRoot, "put_if_absent", commits_then("error"))
    with pytest.raises(CommitConflict):
        delta.commit({"why": "ours"})


def test_3_an_outcome_that_cannot_be_looked_at_is_unknown(delta, monkeypatch):
    """The store that has just failed may fail again: that is no reason to say more than is known."""

    def unreachable(*_):
        raise KafkaStorageException("connection refused")

    monkeypatch.setattr(LocalRoot, "put_if_absent", commits_then("ours", "error"))
    monkeypatch.setattr(delta_log, "read_commit", unreachable)
    with pytest.raises(CommitUnknown):
        delta.commit({"why": "ours"})


@pytest.mark.parametrize("is_local", [True, False], ids=["a disk", "an object store"])
def test_3_a_commit_is_not_believed_where_the_version_before_is_gone(delta, monkeypatch, is_local):
    """A writer that was paused, or whose whole machine was, may have landed in the hole of a clean-up."""
    assert delta.root.exists(commit_name(0))  # from here on the root is what it is said to be
    monkeypatch.setattr(LocalRoot, "is_local", is_local)
    monkeypatch.setattr(LocalRoot, "put_if_absent", commits_then("ours", "clean-up"))
    with pytest.raises(CommitUnknown) as caught:
        delta.commit({})
    assert str(caught.value.__cause__) == "the commit before it may have been cleaned up"


def actions(log, version):
    lines = log.root.read(commit_name(version)).splitlines()
    return [next(iter(json.loads(line).items())) for line in lines]


def placed(log, bodies):
    rows = [row for body in bodies for row in read_records(log.root, body["path"]).to_pylist()]
    return {(row["partition"], row["offset"], row["value"]) for row in rows}


def test_4_a_commit_that_removes_adds_only_what_was_there(log):
    """A stream that skips commits with removals would lose what such a commit appends."""
    send(log, request(P0, 4), request(P1, 4))
    fill(log, P0, 4)
    found = actions(log, truncate(log, {P0: 2, P1: 6}))
    added, removed = ([body for kind, body in found if kind == wanted] for wanted in ("add", "remove"))
    assert len(removed) == 2
    assert all(body["dataChange"] for body in removed)
    assert placed(log, added) < placed(log, removed)
    assert {(p, o) for p, o, _ in placed(log, added)} == {(1, 0), (1, 1), (1, 2), (1, 3)}


def test_4_an_append_removes_nothing(log):
    fill(log, P0, 3)
    assert {kind for kind, _ in actions(log, last_version(log.root))} == {"commitInfo", "add"}


@pytest.mark.parametrize(
    "fence",
    [
        pytest.param(lambda log: lead(log, P0, epoch=5), id="a role"),
        pytest.param(lambda log: log.claim(3), id="a claim"),
        pytest.param(lambda log: start_at(log, P1, 10), id="a log start"),
    ],
)
def test_5_fences_leave_all_files_active(log, fence):
    fill(log, P0, 2, 2)
    before, version = active(log), last_version(log.root)
    fence(log)
    assert last_version(log.root) == version + 1
    assert active(log) == before
    assert len(before) == 2


def missing(log):
    segment = write_segment(log.root, 1, log_rows(), [header()])
    log.root.delete(segment.name)
    return LogChange(adds=(segment,))


def of_another_size(log):
    segment = write_segment(log.root, 1, log_rows(), [header()])
    return LogChange(adds=(type(segment)(AddedFile(segment.name, segment.file.size + 1), segment.headers),))


def twice(log):
    segment = write_segment(log.root, 1, log_rows(P0, 2), [header(P0, 2, 2)])
    return LogChange(adds=(segment, segment))


def active_already(log):
    return LogChange(adds=tuple(log.current().segments.values()))


def unknown_removed(log):
    return LogChange(removes=(write_segment(log.root, 1, log_rows(), [header()]),))


def role_going_back(_):
    return LogChange(txns={role_app_id(P0): role_version(Role(1, FOLLOWER))})


@pytest.mark.parametrize("change", [missing, of_another_size, twice, active_already, unknown_removed, role_going_back])
def test_6_what_delta_rs_does_not_check_is_refused(log, change):
    lead(log, P0, epoch=2)
    fill(log, P0, 2, epoch=2)
    before, version = active(log), last_version(log.root)
    with pytest.raises(CorruptRecordException):
        log.transact({"why": "test"}, lambda _: change(log))
    assert last_version(log.root) == version
    assert active(log) == before


@pytest.fixture
def synced(monkeypatch):
    """The paths that are fsynced, in order."""
    opened, synced = {}, []
    real_open, real_sync = os.open, os.fsync

    def record_open(path, *args, **kwargs):
        descriptor = real_open(path, *args, **kwargs)
        opened[descriptor] = str(path)
        return descriptor

    def record_sync(descriptor):
        synced.append(opened[descriptor])
        real_sync(descriptor)

    monkeypatch.setattr(storage_root.os, "open", record_open)
    monkeypatch.setattr(storage_root.os, "fsync", record_sync)
    return synced


@pytest.mark.parametrize("fsync", [True, False])
def test_7_data_its_folder_the_commit_and_the_log_folder_are_synced_in_that_order(root, synced, fsync):
    log = new_log(StorageRoot.of(root, fsync=fsync).child("log"), P0)
    synced.clear()
    fill(log, P0, 1)
    (data,) = (segment.name for segment in log.current().segments.values())
    path, version = f"{root}/log", log.current().version
    found = [re.sub(r"/\.(.*)\.[0-9a-f]+\.tmp$", r"/\1", name) for name in synced]
    wanted = [f"{path}/{data}", path, f"{path}/{commit_name(version)}", f"{path}/_delta_log"]
    assert found == (wanted if fsync else [])


def test_7_a_commit_whose_name_may_not_last_is_not_believed(root, monkeypatch):
    delta = DeltaLog.create(StorageRoot.of(root, fsync=True), CLUSTER)
    real = os.fsync

    def fails_on_folders(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(storage_root.os, "fsync", fails_on_folders)
    with pytest.raises(KafkaStorageException, match="Input/output error"):
        delta.commit({"why": "test"})


def open_and_append(_, uri, sequence):
    log = ReplicaLog.open(StorageRoot.of(uri))
    return send(log, request(P0, 1, sequence))


def test_8_processes_are_spawned_and_work_after_delta_rs_was_used(log):
    fill(log, P0, 1)
    (outcomes,) = race(open_and_append, (log.root.uri, 1))
    assert SPAWN.get_start_method() == "spawn"
    assert [outcome.base_offset for outcome in outcomes] == [1]


def make(start, uris):
    """Makes tables that nobody else has made; their ids as this process sees them."""
    start()
    made = []
    for uri in uris:
        try:
            made.append(DeltaLog.create(StorageRoot.of(uri), LOG).table_id)
        except LakelogException as error:
            made.append(error.name)
    return made


def test_of_two_processes_that_make_a_table_one_does(root):
    uris = [f"{root}/{number}" for number in range(60)]
    for uri, *made in zip(uris, *race(make, (uris,), (uris,)), strict=True):
        assert made.count("InconsistentClusterIdException") == 1, made
        assert DeltaLog.open(StorageRoot.of(uri)).table_id in made
