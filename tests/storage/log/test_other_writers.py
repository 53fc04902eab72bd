"""A tool that Delta does not stop, because the log is of an older format, has written the log: its owner undoes it."""

import json
from dataclasses import replace

import pytest
from deltalake import DeltaTable, write_deltalake

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.partition_log import FOLLOWER, Role
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.other_writers import foreign_files, undo_other_writers
from lakelog.replication.storage.log.repair import repair_logs
from lakelog.replication.storage.log.replica_log import ReplicaLog
from tests.storage.logs import P0, P1, P2, facts, fill, follow, new_log, offsets, request, send, values


@pytest.fixture
def log(root):
    """P0 has 0-5 and P1 0-2, in 3 files of a log that other tools may write."""
    log = new_log(replace(StorageRoot.of(root).child("log"), admits_writers=True), P0, P1)
    fill(log, P0, 2, 2)
    send(log, request(P0, 2, sequence=4), request(P1, 3))
    return log


def optimize(log):
    DeltaTable(log.root.uri).optimize.compact()


def delete(log):
    DeltaTable(log.root.uri).delete("offset = 1")


def delete_all(log):
    DeltaTable(log.root.uri).delete("offset >= 0")


def rewrite_twice(log):
    optimize(log)
    DeltaTable(log.root.uri).optimize.z_order(["offset"])


def insert(log):
    write_deltalake(log.root.uri, DeltaTable(log.root.uri).to_pyarrow_table().slice(0, 1), mode="append")


def optimize_and_more(log):
    """Another partition goes on meanwhile."""
    optimize(log)
    log.refresh()
    log.become({P2: Role(0, FOLLOWER)}, "test")


@pytest.mark.parametrize("write", [optimize, delete, delete_all, rewrite_twice, insert, optimize_and_more])
def test_ol_01_what_another_tool_has_written_is_undone(log, write):
    before = values(log), values(log, P1), log.current().partition(P0).producers
    write(log)
    if write is not delete_all:
        assert foreign_files(log.refresh())
        with pytest.raises(CorruptRecordException, match="is not a segment"):
            log.read(P0, 0)
    log.refresh()
    assert (log.rewritten_at >= 0) == (write is not insert)
    assert undo_other_writers(log, "test") is not None
    assert (values(log), values(log, P1), log.current().partition(P0).producers) == before
    assert facts(ReplicaLog.open(log.root)) == facts(log)
    assert undo_other_writers(log, "test") is None
    fill(log, P0, 1)
    assert offsets(log) == list(range(7))


def known_of(log):
    """What a handle knows of the partitions, and their faults."""
    state = log.refresh()
    return {p: (state.known(p), state.fault(p)) for p in (P0, P1)}, set(state.segments)


@pytest.mark.parametrize("data_change", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_ol_01_a_commit_that_only_removes_is_noticed_by_who_has_the_log_open_and_undone(log, which, data_change):
    """Also if it says that it changes no data, as a compaction does."""
    before, reader = values(log), ReplicaLog.open(log.root)
    name = log.current().partition(P0).batches[which].segment
    remove = {"path": name, "dataChange": data_change, "deletionTimestamp": 1, "extendedFileMetadata": False}
    lines = [{"commitInfo": {"operation": "DELETE", "timestamp": 1}}, {"remove": remove}]
    content = "\n".join(map(json.dumps, lines)).encode()
    log.root.put_if_absent(commit_name(log.current().version + 1), content)
    assert known_of(log) == known_of(reader) == known_of(ReplicaLog.open(log.root))
    assert [batch.segment for batch in log.current().known(P0).batches].count(name) == 0
    assert undo_other_writers(log, "test") is not None
    assert values(log) == before
    assert facts(reader) == facts(log) == facts(ReplicaLog.open(log.root))


def test_ol_01_a_reader_that_has_seen_it_all_ends_with_the_same_log(log):
    reader = ReplicaLog.open(log.root)
    optimize(log)
    reader.refresh()
    log.refresh()
    undo_other_writers(log, "test")
    assert facts(reader) == facts(log)


def test_ol_01_a_table_that_an_operator_has_restored_stays_as_it_is(log):
    before, version = facts(log), log.refresh().version
    optimize(log)
    DeltaTable(log.root.uri).restore(version)
    log.refresh()
    assert undo_other_writers(log, "test") is None
    assert facts(ReplicaLog.open(log.root))[2:] == before[2:]


def test_ol_01_batches_that_are_there_again_are_not_doubled(log):
    """The broker has fetched the records of one partition again before."""
    optimize(log)
    log.refresh()
    follow(log, P0, epoch=1)
    follow(log, P1, epoch=1)
    assert repair_logs(log, {P0: 1, P1: 1}, "test") is not None
    assert undo_other_writers(log, "test") is None
    assert offsets(log) == []


def test_ol_01_where_a_segment_is_gone_each_partition_is_repaired_by_itself(log):
    lost = min(log.current().segments)
    optimize(log)
    log.refresh()
    follow(log, P1, epoch=1)
    assert repair_logs(log, {P1: 1}, "test", [P0, P1]) is None, "P0, which nobody else has, is in the same file"
    log.root.delete(lost)
    assert undo_other_writers(log, "test") is not None
    assert repair_logs(log, {P1: 1}, "test", [P0, P1]) is not None
    assert offsets(log, P1) == []
    with pytest.raises(CorruptRecordException, match="is not a segment"):
        log.read(P0, 0)
    assert facts_of_open(log) == [P0]
    assert sorted(DeltaTable(log.root.uri).to_pyarrow_table()["offset"].to_pylist()) == list(range(6)), "rows are gone"
    assert undo_other_writers(log, "test") is None


def facts_of_open(log):
    """The partitions with a fault, as a new handle finds them."""
    state = ReplicaLog.open(log.root).current()
    return [partition for partition in (P0, P1) if state.known(partition) and state.fault(partition)]
