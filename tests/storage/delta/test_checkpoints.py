"""A table's owner writes checkpoints, so that opening the table does not read its whole history."""

import dataclasses
import os

import pytest

from lakelog.replication.config import Config
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta import delta_log
from lakelog.replication.storage.delta.commit_format import commit_name, is_commit
from lakelog.replication.storage.delta.delta_log import CHECKPOINT_COMMITS
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.group_tables import CommittedOffset
from lakelog.schemas import BROKERS, LOG
from tests.clock import Clock
from tests.storage.logs import P0, facts, fill, leo, new_log


def checkpoints(root):
    return [name for name in root.child("_delta_log").list() if name.endswith(".checkpoint.parquet")]


def test_a_log_gets_a_checkpoint_when_it_is_due_and_reads_the_same(root):
    log = new_log(root, P0)
    log.maintain()
    assert checkpoints(log.root) == []
    fill(log, P0, *[1] * CHECKPOINT_COMMITS)
    log.maintain()
    assert len(checkpoints(log.root)) == 1
    fill(log, P0, 1)
    log.maintain()
    assert len(checkpoints(log.root)) == 1, "one is enough for so many commits"
    assert facts(ReplicaLog.open(log.root), P0) == facts(log, P0)


def test_who_goes_on_opens_no_table(root, monkeypatch):
    """delta-rs lists the log of a table that it opens."""
    log = new_log(root, P0)
    reader = ReplicaLog.open(log.root)
    with monkeypatch.context() as patched:
        patched.setattr(StorageRoot, "open_table", lambda *_: pytest.fail("a table was opened"))
        patched.setattr(LocalRoot, "list", lambda *_: pytest.fail("a folder was listed"))
        for count in range(1, 13):
            fill(log, P0, 1)
            assert facts(reader, P0) == facts(log, P0)
            assert leo(log) == count
    assert facts(ReplicaLog.open(log.root), P0) == facts(log, P0)


def test_a_heartbeat_goes_on_over_checkpoints(root):
    table = BrokerTable.open_or_create(StorageRoot.of(root), 1)
    table.register(lambda _: BrokerRegistration(1, "/1", None, 1, -1, False, None, "log", 0))
    for _ in range(CHECKPOINT_COMMITS):
        table.heartbeat(1, "heartbeat")
    table.maintain()
    table.heartbeat(1, "heartbeat")
    folder = StorageRoot.of(root).child("brokers", "1")
    assert len(checkpoints(folder)) == 1
    found = BrokerTable.open(StorageRoot.of(root), 1).registration
    assert found is not None
    assert found.heartbeat == CHECKPOINT_COMMITS + 2


def test_the_active_controller_keeps_the_tables_of_its_cluster_cheap_to_open(root, monkeypatch):
    storage = StorageRoot.of(root)
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 3)
    format_cluster(storage, Config())
    clock = Clock()
    controller = Controller(Cluster.open(storage.uri), "test", clock)
    controller.tick()
    clock.now += 3
    controller.tick()
    writer = Cluster.open(storage.uri)
    for number in range(3):
        writer.groups.commit([CommittedOffset("g", "t", "id", 0, number)])
        writer.producers.init_producer("p", "me")
    for _ in range(4):
        clock.now += 3
        controller.tick()
    checkpointed = {name for name in storage.list() if checkpoints(storage.child(name))}
    assert checkpointed == {"controller", "groups", "producers"}


@pytest.fixture
def busy(root, monkeypatch):
    """A log whose owner keeps four commits, and whose first ones have gone."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    monkeypatch.setattr("lakelog.replication.storage.log.replica_log.LOG", dataclasses.replace(LOG, commits_kept=4))
    log = new_log(root, P0)
    fill(log, P0, 1)
    return log


def go_on(log, commits=12):
    for _ in range(commits):
        fill(log, P0, 1)
        log.maintain()


def commits_of(root):
    return [int(name[:20]) for name in root.child("_delta_log").list() if is_commit(name)]


def test_na_04_a_log_on_a_local_disk_keeps_some_commits_only(busy):
    go_on(busy, 40)
    kept = commits_of(busy.root)
    assert len(kept) <= 4 + 2 * 5, "those since the last checkpoint but one stay"
    assert kept == list(range(kept[0], busy.current().version + 1))
    assert len(checkpoints(busy.root)) <= 3
    assert facts(ReplicaLog.open(busy.root), P0) == facts(busy, P0)


def test_na_04_who_has_fallen_behind_a_clean_up_builds_its_state_anew(busy):
    other = ReplicaLog.open(busy.root)
    go_on(busy)
    fill(other, P0, 1)
    assert leo(busy) == 14
    assert facts(other, P0) == facts(busy, P0)


def test_must_do_2_a_commit_that_lands_in_the_hole_of_a_clean_up_is_not_believed(busy, monkeypatch):
    """A writer is frozen after it has looked at the newest version; meanwhile that is cleaned up."""
    late, write = ReplicaLog.open(busy.root), LocalRoot.put_if_absent

    def frozen(self, name, content):
        monkeypatch.setattr(LocalRoot, "put_if_absent", write)
        go_on(busy)
        assert not self.exists(name)
        return write(self, name, content)

    monkeypatch.setattr(LocalRoot, "put_if_absent", frozen)
    fill(late, P0, 1, producer_id=9)
    assert leo(busy) == 14, "the record of the late writer was written again, where everybody sees it"
    assert facts(late, P0) == facts(busy, P0)


def test_must_do_2_nobody_reads_what_lies_in_the_hole_of_a_clean_up(busy):
    other, reader = ReplicaLog.open(busy.root), NewSegments(busy.root, 1)
    reader.begin()
    go_on(busy)
    hole = commit_name(reader.version + 1)
    newest = busy.root.read(commit_name(busy.current().version))
    busy.root.child("_delta_log").write(os.path.basename(hole), newest)
    assert facts(other, P0) == facts(busy, P0)
    version = busy.current().version
    assert [row[-1] for row in reader.read()] == [f"commits up to {version} of {busy.root.uri} have been cleaned up"]
    assert reader.version == version
    go_on(busy, 10)
    assert not busy.root.exists(hole)


@pytest.mark.parametrize("kept", [4, None])
def test_what_a_writer_left_that_died_in_a_commit_goes(busy, monkeypatch, kept):
    monkeypatch.setattr("lakelog.replication.storage.log.replica_log.LOG", dataclasses.replace(LOG, commits_kept=kept))
    folder, due = busy.root.child("_delta_log"), busy.current().version
    old, young = (f".{version:020d}.json.{'0' * 32}.tmp" for version in (due, due + 100))
    for name in (old, young, ".other"):
        folder.write(name, b"half")
    go_on(busy)
    assert {old, young, ".other"} & {*folder.list()} == {young, ".other"}


def compacted(log):
    go_on(log, 6)
    assert compact(log, 2**25, 2, 2**28, "test") > 0
    go_on(log, 20)


def test_na_04_who_has_fallen_behind_a_clean_up_forgets_the_files_that_went_meanwhile(busy):
    """A handle that jumps over commits is told by none of them which files they have removed."""
    fill(busy, P0, 1, 1)
    other = ReplicaLog.open(busy.root)
    compacted(busy)
    assert commits_of(busy.root)[0] > other.current().version + 1
    assert facts(other, P0) == facts(busy, P0)


def test_na_04_a_state_table_that_has_fallen_behind_has_the_newest_rows_only(root, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 5)
    monkeypatch.setattr(BrokerTable, "TABLE", dataclasses.replace(BROKERS, commits_kept=4))
    table = BrokerTable.open_or_create(StorageRoot.of(root), 1)
    table.register(lambda _: BrokerRegistration(1, "/1", None, 1, -1, False, None, "log", 0))
    other = BrokerTable.open(StorageRoot.of(root), 1)
    for _ in range(30):
        table.heartbeat(1, "heartbeat")
        table.maintain()
    assert commits_of(StorageRoot.of(root).child("brokers", "1"))[0] > 2
    assert other.refresh()
    assert other.registration == table.registration
    assert other.registration.heartbeat == 31
