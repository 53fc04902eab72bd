"""A log handle's state after replaying commits, opening the table, clean-ups and failures."""

import copy

import pytest
from deltalake import DeltaTable

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.partition_log import LEADER, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta import commit_format, delta_log, storage_root
from lakelog.replication.storage.delta.commit_format import commit_name, last_version
from lakelog.replication.storage.delta.delta_log import CommitTracker
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import broken_segments, log_txns
from lakelog.replication.storage.log.log_append import Appended
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.verification.roots.storage_faults import bring_back, take_away
from tests.storage.logs import (
    P0,
    P1,
    P2,
    facts,
    fill,
    follow,
    lead,
    leo,
    new_log,
    offsets,
    request,
    send,
    start_at,
    truncate,
)


@pytest.fixture
def log(root):
    return new_log(root, P0, P1)


def reopened(log):
    return ReplicaLog.open(log.root)


def delete_half(log):
    raise_log_starts(log, {P0: lambda _: 4}, "test", "test")
    delete_old_segments(log, 0, "test")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda log: compact(log, 2**25, 2, 2**28, "test"), id="na_04: files are put together"),
        pytest.param(lambda log: truncate(log, {P0: 3}), id="tr_05: the end is truncated"),
        pytest.param(delete_half, id="dr_01: the beginning is deleted"),
        pytest.param(lambda log: lead(log, P0, epoch=3), id="bl_06: another epoch begins"),
        pytest.param(lambda log: start_at(log, P2, 7), id="ap_03: a log starts elsewhere"),
    ],
)
def test_who_looks_at_a_log_meanwhile_sees_nothing_half_done(log, change):
    """Other threads hold a state. A replay makes a new state and does not change theirs."""
    fill(log, P0, 2, 2, 2)
    seen, before = log.current(), copy.deepcopy(facts(log, P0, P1)[2:])
    change(log)
    assert log.current() is not seen
    assert (set(seen.segments), {p: seen.partition(p) for p in (P0, P1)}) == before
    assert facts(reopened(log)) == facts(log)


def test_an_append_costs_no_new_state(log):
    seen = log.current()
    fill(log, P0, 2)
    assert log.current() is seen


def appends(log):
    fill(log, P0, 3, 2)
    send(log, request(P0, 1, sequence=5), request(P1, 4))


def roles(log):
    fill(log, P0, 3)
    lead(log, P0, epoch=2)
    follow(log, P1, epoch=2)
    fill(log, P0, 3, epoch=2)
    lead(log, P0, epoch=3)


def claims_and_starts(log):
    log.claim(0)
    start_at(log, P2, 40)
    follow(log, P2, epoch=1)


def truncates(log):
    appends(log)
    roles(log)
    truncate(log, {P0: 4, P1: 2})


def truncations_of_everything(log):
    appends(log)
    truncate(log, {P0: 0, P1: 0})


def appends_after_truncations(log):
    truncates(log)
    lead(log, P0, epoch=5)
    fill(log, P0, 2, 2, epoch=5)
    fill(log, P0, 3, epoch=5, producer_id=9)


def two_topics(log):
    appends(log)
    log.become({TopicIdPartition("other", 0): Role(4, LEADER)}, "test")


@pytest.mark.parametrize(
    "history",
    [appends, roles, claims_and_starts, truncates, truncations_of_everything, appends_after_truncations, two_topics],
)
@pytest.mark.parametrize("cleaned", [False, True])
def test_a_log_that_is_opened_knows_what_its_writer_and_its_follower_know(log, history, cleaned):
    """The writer has replayed its own commits, the follower the commits of another, the reader opens the table."""
    follower = reopened(log)
    history(log)
    if cleaned:
        clean_up(log.root)
    partitions = (P0, P1, P2, TopicIdPartition("other", 0))
    assert facts(log, *partitions) == facts(reopened(log), *partitions)
    assert facts(follower, *partitions) == facts(log, *partitions)
    assert log.current().version > 2


def clean_up(root):
    """A checkpoint, and no commits before the newest."""
    DeltaTable(root.uri).create_checkpoint()
    for version in range(last_version(root)):
        root.delete(commit_name(version))


def test_a_handle_that_is_far_behind_a_clean_up_is_built_anew_and_goes_on(log):
    held = reopened(log)
    fill(log, P0, *[2] * 10)
    clean_up(log.root)
    assert offsets(held) == list(range(20))
    fill(held, P0, 1)
    assert offsets(log) == list(range(21))


@pytest.fixture
def reads(monkeypatch):
    """The versions whose commits are read, and the segments whose footers are."""
    seen = []
    commit, segment = commit_format.read_commit, broken_segments.read_segment

    def reads(root, version):
        found = commit(root, version)
        seen.append(version)
        return found

    monkeypatch.setattr(commit_format, "read_commit", reads)
    monkeypatch.setattr(broken_segments, "read_segment", lambda root, f: seen.append(f.name) or segment(root, f))
    return seen


def test_a_refresh_reads_only_new_commits(log, reads):
    follower = reopened(log)
    fill(log, P0, 2, 2)
    follower.refresh()
    reads.clear()
    follower.refresh()
    assert reads == []
    fill(log, P0, 2)
    (new,) = set(log.current().segments) - set(follower.current().segments)
    reads.clear()
    follower.refresh()
    assert reads == [log.current().version, new]


def test_a_writer_does_not_read_the_footers_that_it_has_written(log, reads):
    fill(log, P0, 2, 2)
    assert [name for name in reads if isinstance(name, str)] == []


def test_many_segments_are_read_at_once_and_in_order(log):
    follower = reopened(log)
    fill(log, P0, *[1] * 20)
    assert facts(reopened(log)) == facts(follower) == facts(log)


def fails_once(real, error):
    failures = [error]

    def patched(*args, **options):
        if failures:
            raise failures.pop()
        return real(*args, **options)

    return patched


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (broken_segments, "read_segment", KafkaStorageException("timed out")),
        (commit_format, "read_commit", KafkaStorageException("timed out")),
    ],
)
def test_a_replay_that_has_failed_is_done_again_before_anything_is_decided(log, monkeypatch, module, name, error):
    """The handle has moved but the state has not. An append on it would use offsets twice."""
    follower = reopened(log)
    fill(log, P0, 2, 3)
    monkeypatch.setattr(module, name, fails_once(getattr(module, name), error))
    with pytest.raises(KafkaStorageException, match="timed out"):
        follower.refresh()
    assert send(follower, request(P0, 1, producer_id=8)) == [Appended(5, 5)]
    assert facts(follower) == facts(reopened(log)) == facts(log)


def test_a_rebuild_that_has_failed_is_done_again(log, monkeypatch):
    follower = reopened(log)
    fill(log, P0, 2, 3)
    clean_up(log.root)
    failing = fails_once(broken_segments.read_segment, KafkaStorageException("timed out"))
    monkeypatch.setattr(broken_segments, "read_segment", failing)
    with pytest.raises(KafkaStorageException, match="timed out"):
        follower.refresh()
    assert facts(follower) == facts(log)


def test_a_store_that_does_not_answer_is_an_error_of_ours(log, monkeypatch):
    def unreachable(*_):
        raise OSError("connection refused")

    monkeypatch.setattr(storage_root.os, "stat", unreachable)
    with pytest.raises(KafkaStorageException, match=f"{log.root.uri}/_delta_log/.* connection refused"):
        log.refresh()


def test_broker_epoch_0_is_an_epoch(log):
    log.claim(0)
    assert reopened(log).current().broker_epoch == 0


@pytest.mark.parametrize("known", [-1, 0, 3, 6])
@pytest.mark.parametrize("cleaned", [False, True])
def test_the_newest_version_is_found_from_any_known_one(log, known, cleaned):
    fill(log, P0, *[1] * 5)
    if cleaned:
        clean_up(log.root)
    assert CommitTracker(log.root).newest(known) == last_version(log.root) == 6


def test_the_newest_version_is_listed_once_where_nothing_is_known(log, monkeypatch):
    """A table may have had a million commits, so they are not looked up one by one."""
    fill(log, P0, *[1] * 5)
    asked, stamps = [], LocalRoot.stamps
    monkeypatch.setattr(LocalRoot, "stamps", lambda self, names: asked.append(names) or stamps(self, names))
    assert CommitTracker(log.root).newest(-1) == 6
    assert len(asked) <= 1


def test_a_table_that_is_not_there_has_no_version(root):
    assert CommitTracker(StorageRoot.of(root)).newest(-1) == last_version(StorageRoot.of(root)) == -1


def test_a_clean_up_during_the_read_of_an_empty_partition_is_no_error(log):
    held = reopened(log)
    lead(log, P2, epoch=0)
    clean_up(log.root)
    assert leo(held, P2) == 0
    assert held.current().partition(P2).role == Role(0, LEADER)


def test_ol_02_a_replay_that_fails_half_way_is_done_again(log, monkeypatch):
    """A root goes away while a commit is replayed: the first read fails, later ones succeed."""
    lead(log, P2, epoch=0)
    other = ReplicaLog.open(log.root)
    send(log, request(P0, 2), request(P1, 3))
    send(log, request(P0, 2, 2), request(P1, 3, 3), request(P2, 4))
    asked = delta_log.DeltaLog.transaction_version

    def fails(self, app_id):
        if app_id.endswith("/2"):
            raise KafkaStorageException("not a directory")
        return asked(self, app_id)

    monkeypatch.setattr(delta_log.DeltaLog, "transaction_version", fails)
    monkeypatch.setattr(log_txns, "MANY", 1_000)
    for _ in range(3):
        with pytest.raises(KafkaStorageException):
            other.refresh()
    monkeypatch.setattr(delta_log.DeltaLog, "transaction_version", asked)
    assert facts(other) == facts(log)


def test_ol_01_what_does_not_add_up_is_read_anew(log, caplog):
    """The files decide. A handle whose state differs notices, and reads them again."""
    other = ReplicaLog.open(log.root)
    fill(log, P0, 2, 2, 2)
    wrong = other.refresh().partition(P0)
    wrong.place([wrong.batches[0]])
    truncate(log, {P0: 5})
    assert facts(other) == facts(log)
    assert "the replayed state is inconsistent, it is rebuilt" in caplog.text


def test_ol_02_a_root_that_is_away_is_a_storage_error_whatever_is_asked(log, monkeypatch):
    fill(log, P0, 2)
    monkeypatch.setattr(delta_log, "CHECKPOINT_COMMITS", 1)
    log.maintain()  # without a checkpoint a log has read everything when it was opened
    other = delta_log.DeltaLog.open(log.root)
    take_away(log.root.uri)
    try:
        with pytest.raises(KafkaStorageException, match="cannot be read"):
            other.transaction_version("role/nobody/0")
    finally:
        bring_back(log.root.uri)
    assert other.transaction_version("role/nobody/0") is None


def test_na_04_a_compacted_file_that_is_gone_already_is_no_place_for_batches(log, caplog):
    """A handle that is far behind replays a compaction whose file was replaced and deleted since."""
    fill(log, P0, 2, 2)
    other = ReplicaLog.open(log.root)
    compact(log, 2**25, 2, 2**28, "test")
    (first,) = log.current().segments
    fill(log, P0, 2)
    compact(log, 2**25, 2, 2**28, "test")
    log.root.delete(first)
    assert facts(other) == facts(log)
    assert "is inconsistent" not in caplog.text
