"""Truncates logs in one commit: removes whole files and rewrites others, without adding records."""

import time
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from lakelog.replication.errors import CorruptRecordException, LakelogException
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, NO_ROLE, STOPPED, Role
from lakelog.replication.protocol.producer_state import SequenceRun
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.storage.delta import commit_format, delta_log
from lakelog.replication.storage.delta.checkpoint import checkpoint_name
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.data_file_name import leader_of
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import Appended
from lakelog.replication.storage.log.log_txns import app_ids, role_app_id, start_app_id
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_records, read_segment, write_segment
from lakelog.replication.storage.log.segment_copy import rewrite
from lakelog.replication.storage.log.truncate import delete_logs, delete_stray_logs, truncate_logs
from lakelog.schemas import LOG
from tests.storage.logs import (
    P0,
    P1,
    chain,
    epochs,
    facts,
    fill,
    filled_log,
    follow,
    header,
    lead,
    leo,
    log_rows,
    new_log,
    offsets,
    request,
    send,
    start_at,
    truncate,
    values,
)

ELSEWHERE = genesis(TopicIdPartition("another history", 0))


@pytest.fixture
def log(root):
    """P0 has 0-3 | 4-7 | 8-11 (epoch 1), the second file holds P1 too."""
    return filled_log(root)


@pytest.mark.parametrize(
    ("offset", "end", "removed", "added"),
    [
        pytest.param(12, 12, 0, 0, id="at the LEO"),
        pytest.param(99, 12, 0, 0, id="above the LEO"),
        pytest.param(11, 8, 1, 0, id="in the last batch: all of it goes"),
        pytest.param(8, 8, 1, 0, id="between files"),
        pytest.param(6, 4, 2, 1, id="in a file of two partitions"),
        pytest.param(4, 4, 2, 1, id="before a file of two partitions"),
        pytest.param(1, 0, 3, 1, id="in the first batch"),
        pytest.param(0, 0, 3, 1, id="everything"),
    ],
)
def test_tr_05_a_truncation_removes_and_rewrites_whole_batches_in_one_commit(log, offset, end, removed, added):
    version, bystander = last_version(log.root), values(log, P1)
    before = log.current().partition(P0).chain_at(end)
    truncation = truncate(log, {P0: offset})
    assert truncation == (version + 1 if removed else None)
    if removed:
        commit = read_commit(log.root, truncation)
        assert (len(commit.removes), len(commit.adds)) == (removed, added)
        assert all(leader_of(file.name) == 1 for file in commit.adds)
        assert (any(f.data_change for f in commit.adds), all(f.data_change for f in commit.removes)) == (False, True)
    assert last_version(log.root) == version + bool(removed)
    assert offsets(log) == list(range(end))
    assert (leo(log), chain(log), values(log, P1)) == (end, before, bystander)
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def test_several_partitions_are_truncated_in_one_commit(log):
    version = last_version(log.root)
    assert truncate(log, {P0: 5, P1: 2}) == version + 1
    assert (offsets(log), offsets(log, P1)) == ([0, 1, 2, 3], [])
    assert (chain(log, P1), leo(log, P1)) == (genesis(P1), 0)


def test_tr_05_the_lineage_and_the_producers_are_truncated_too(log):
    follow(log, P0, epoch=2)
    truncate(log, {P0: 6})
    assert epochs(log) == [(0, 0)]
    assert log.refresh().partition(P0).producers[7].runs == (SequenceRun(0, 3, 0),)


def test_kip_98_what_was_truncated_is_no_duplicate_when_it_is_sent_again(log):
    truncate(log, {P0: 6})
    assert send(log, request(P0, 4, sequence=4, epoch=1)) == [Appended(4, 7)]
    assert send(log, request(P0, 4, sequence=0, epoch=1)) == [Appended(0, 3, duplicate=True, leader_epoch=0)]


def test_the_batches_of_a_rewritten_segment_are_what_they_were(log):
    whole = log.current().partition(P1).batches
    truncate(log, {P0: 5})
    (segment,) = [s for s in log.current().segments.values() if s.headers[0].topic_id_partition == P1]
    assert read_segment(log.root, segment.file) == segment
    assert segment.headers == tuple(batch.header for batch in whole)
    assert read_records(log.root, segment.name).num_rows == 5


def test_some_batches_of_a_segment_are_written_to_another_root(log, root):
    batch = log.current().partition(P0).batches[1]
    target = StorageRoot.of(f"{root}/other")
    target.create_folder()
    part = rewrite(log.root, log.current().segments[batch.segment], target, [batch.header])
    assert part.headers == (batch.header,)
    assert read_records(target, part.name)["value"].to_pylist() == [b"0", b"1", b"2", b"3"]
    assert target.list() == [part.name]


def with_column(rows, name, found):
    return rows.set_column(rows.schema.get_field_index(name), LOG.arrow.field(name), found)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda rows: with_column(rows, "value", rows["value"].take([1, 0])), id="in another order"),
        pytest.param(lambda rows: with_column(rows, "key", rows["value"]), id="another key"),
        pytest.param(lambda rows: rows.slice(0, 1), id="one is missing"),
    ],
)
def test_records_that_are_not_those_of_their_header_are_not_written_again(root, wrong):
    """Otherwise the new file's digest would agree with the wrong records."""
    storage = StorageRoot.of(root)
    segment = write_segment(storage, 1, wrong(log_rows(P0, 0, 2)), [header(P0, 0, 1)])
    with pytest.raises(CorruptRecordException, match=rf"{segment.name}: flights-0: the records at offsets 0 to 1"):
        rewrite(storage, segment, storage, segment.headers)
    assert storage.list() == [segment.name]


def test_nothing_wanted_is_nothing_written(log):
    segment = next(iter(log.current().segments.values()))
    before = log.root.list()
    assert rewrite(log.root, segment, log.root, []) is None
    assert log.root.list() == before


def test_records_that_were_truncated_can_still_be_read_at_the_version_before(log):
    version = log.current().version
    truncate(log, {P0: 0, P1: 0})
    removed = read_commit(log.root, version + 1).removes
    assert {file.name for file in removed} <= set(log.root.list())


@pytest.mark.parametrize(
    ("truncation", "log_start_offset", "end"),
    [
        (Truncation(1, 4), 0, 4),
        (Truncation(1, 5), 0, 4),
        (Truncation(1, 9), 0, 6),
        (Truncation(1, 0), 0, 0),
        (Truncation(1, 0, LogEnd(100, ELSEWHERE)), 100, 100),
    ],
    ids=["a batch", "a part of one", "nothing", "all", "all, and from further up"],
)
def test_tr_05_a_follower_is_truncated_in_one_commit(root, truncation, log_start_offset, end):
    log = new_log(root, P0, P1)
    send(log, request(P0, 4), request(P1, 2))
    fill(log, P0, 2)
    follow(log, P0, epoch=1)
    before = log.current().version
    expected = truncation.restart.chain if truncation.restart else log.current().partition(P0).chain_at(end)
    truncate_logs(log, {P0: truncation}, "test")
    state = log.refresh()
    assert (state.partition(P0).log_start_offset, leo(log, P0), leo(log, P1)) == (log_start_offset, end, 2)
    assert chain(log) == expected
    assert state.version - before == (0 if end == 6 else 1)
    assert ReplicaLog.open(log.root).current().partition(P0) == state.partition(P0)


def test_tr_07_a_log_may_start_over_below_where_it_began(root):
    log = new_log(root, P0)
    start_at(log, P0, 50)
    fill(log, P0, 5)
    follow(log, P0, epoch=1)
    truncate_logs(log, {P0: Truncation(1, 50, LogEnd(20, ELSEWHERE))}, "test")
    for found in (log, ReplicaLog.open(log.root)):
        state = found.refresh().partition(P0)
        assert (state.log_start_offset, state.log_end) == (20, LogEnd(20, ELSEWHERE))
    lead(log, P0, epoch=2)
    fill(log, P0, 1, epoch=2)
    assert log.current().partition(P0).batches[0].header.previous == ELSEWHERE


@pytest.mark.parametrize("role", [Role(1, LEADER), Role(2, FOLLOWER), Role(1, STOPPED)], ids=lambda role: role.name)
def test_tr_02_a_truncation_is_dropped_when_the_role_has_changed(root, role):
    log = new_log(root, P0, P1)
    send(log, request(P0, 6), request(P1, 2))
    log.become({P0: role, P1: Role(1, FOLLOWER)}, "test")
    truncate_logs(log, {P0: Truncation(1, 0), P1: Truncation(1, 0)}, "test")
    assert (leo(log, P0), leo(log, P1)) == (6, 0), "one partition's role says nothing of another's"


def test_sr_02_a_stopped_replica_is_deleted_and_no_other(root):
    log = new_log(root, P0, P1)
    send(log, request(P0, 6), request(P1, 2))
    log.become({P0: Role(0, STOPPED)}, "test")
    delete_logs(log, [P0, P1], "test")
    assert (leo(log, P0), leo(log, P1)) == (0, 2)


GONE = TopicIdPartition("deleted-id", 0)


def test_sr_02_a_deleted_partition_is_given_up_and_known_again_when_somebody_asks(root):
    log = new_log(root, P0, GONE)
    reader = ReplicaLog.open(log.root)
    fill(log, P0, 2)
    fill(log, GONE, 2)
    assert reader.refresh().partition(GONE).log_end_offset == 2
    log.become({GONE: Role(1, STOPPED)}, "test")
    assert GONE in log.current().partitions()
    delete_logs(log, [GONE], "test")
    for handle in (log, reader, ReplicaLog.open(log.root)):
        assert handle.refresh().partitions() == [P0]
        assert list(handle.current().topics) == [P0.topic_id]
        assert handle.current().known(GONE).role == Role(1, STOPPED)
    (refused,) = send(log, request(GONE, 1, sequence=2))
    assert isinstance(refused, LakelogException)
    assert facts(ReplicaLog.open(log.root)) == facts(log)


DAYS = 86400


def txns_of_checkpoint(log, monkeypatch):
    """The names of the `txn`s in a checkpoint that is written now."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 1)
    log.become({P1: Role(last_version(log.root), FOLLOWER)}, "one more commit")
    log.maintain()
    content = pq.read_table(log.root.path(checkpoint_name(last_version(log.root))), columns=["txn"])["txn"]
    return {txn["appId"] for txn in content.drop_null().to_pylist()}


def stop(log, monkeypatch, days_ago):
    """Stops and deletes GONE, whose records were deleted up to 2, so many days ago."""
    start_at(log, GONE, 2)
    now = time.time() - days_ago * DAYS
    monkeypatch.setattr(commit_format, "time", SimpleNamespace(time=lambda: now))
    log.become({GONE: Role(1, STOPPED)}, "test")
    delete_logs(log, [GONE], "test")
    monkeypatch.undo()


@pytest.fixture
def shared(root):
    log = new_log(root, P0, GONE)
    fill(log, P0, 2)
    fill(log, GONE, 2, 2)
    return log


def test_sr_02_the_facts_of_a_deleted_topic_expire_and_no_others_do(shared, monkeypatch):
    stop(shared, monkeypatch, days_ago=8)
    txns = txns_of_checkpoint(shared, monkeypatch)
    assert not txns & set(app_ids(GONE))
    assert txns > {role_app_id(P0), role_app_id(P1)}
    again = ReplicaLog.open(shared.root)
    assert again.current().known(GONE).role == NO_ROLE
    (refused,) = send(again, request(GONE, 1, sequence=4))
    assert isinstance(refused, LakelogException), "a producer that has slept for long appends nothing"
    assert values(again) == values(shared) == [b"0", b"1"]


def test_sr_03_the_role_of_a_stray_replica_that_a_person_has_deleted_does_not_expire(shared, monkeypatch):
    """Metadata that count on it may come back: without the role the replica would seem to be a new one."""
    stray = shared.current().known(GONE).role.as_stray()
    now = time.time() - 8 * DAYS
    with monkeypatch.context() as past:
        past.setattr(commit_format, "time", SimpleNamespace(time=lambda: now))
        shared.become({GONE: stray}, "test")
        assert delete_stray_logs(shared, [GONE], "test") == [GONE]
    assert role_app_id(GONE) in txns_of_checkpoint(shared, monkeypatch)
    assert ReplicaLog.open(shared.root).current().known(GONE).role == Role(stray.leader_epoch, STOPPED)


def test_sr_02_they_stay_for_a_week(shared, monkeypatch):
    stop(shared, monkeypatch, days_ago=6)
    assert set(app_ids(GONE)) <= txns_of_checkpoint(shared, monkeypatch)
    assert ReplicaLog.open(shared.root).current().known(GONE).role == Role(1, STOPPED)


@pytest.mark.parametrize("days_ago", [6, 8])
def test_sr_02_a_replica_that_returns_keeps_its_facts_for_good(shared, monkeypatch, days_ago):
    """It was stopped because its partition had moved away. Its log starts where it stood, or over."""
    stop(shared, monkeypatch, days_ago)
    shared.become({GONE: Role(2, FOLLOWER)}, "test")
    end = shared.current().partition(GONE).log_end
    assert {role_app_id(GONE)} | set(app_ids(GONE)) - {start_app_id(GONE)} <= txns_of_checkpoint(shared, monkeypatch)
    again = ReplicaLog.open(shared.root)
    assert again.current().partition(GONE).log_end == end
    assert facts(again, P0, GONE) == facts(shared, P0, GONE)
