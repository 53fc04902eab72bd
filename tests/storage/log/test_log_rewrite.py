"""Removes records from a log: the rest is rewritten once, before the commit, and nobody waits for it."""

from collections import Counter
from pathlib import Path

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.partition_log import STOPPED, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.truncation import Truncation
from lakelog.replication.storage.delta.commit_format import commit_name, drop_commits_before
from lakelog.replication.storage.delta.data_file_name import is_snapshot
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.log import log_rewrite
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.log_rewrite import Removal, readable, take_out
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_logs, truncate_logs, without_ends
from tests.hanging import ends, in_background
from tests.storage.delta.answers import land_unheard, lose_an_answer
from tests.storage.logs import P0, P1, P2, facts, fill, follow, leo, new_log, offsets, request, send, truncate


@pytest.fixture
def log(root):
    """Two segments of P0, followed, and P1, led; and one of P1 and P2."""
    made = new_log(root, P0, P1, P2)
    for number in range(2):
        send(made, request(P0, 4, 4 * number), request(P1, 3, 3 * number))
    send(made, request(P1, 3, 6), request(P2, 5))
    follow(made, P0, epoch=1)
    return made


def data_files(log):
    return {name for name in log.root.list() if name.endswith(".parquet")}


def unreadable(log, name):
    """Damages a page of the segment, but not its size and footer. Returns a function that repairs it."""
    file = Path(log.root.path(name))
    content = file.read_bytes()
    file.write_bytes(content[:4] + b"x" * 600 + content[604:])
    return lambda: file.write_bytes(content)


def shared(log):
    """The first segment, of P0 and P1."""
    return log.refresh().known(P0).batches[0].segment


@pytest.fixture
def written(monkeypatch):
    """The rewritten segments, one entry for each rewrite."""
    found, original = Counter(), log_rewrite.rewrite

    def rewrite(source, segment, *arguments):
        found[segment.name] += 1
        return original(source, segment, *arguments)

    monkeypatch.setattr(log_rewrite, "rewrite", rewrite)
    return found


def overtaken(monkeypatch, log, times):
    """This many times a producer's commit comes between the broker's look and its commit."""
    producer, commit, left = ReplicaLog.open(log.root), DeltaLog.commit, list(range(times))

    def loses(handle, cause, *arguments, **options):
        if cause.get("who") == "test" and cause["why"] != "append" and left:
            left.pop()
            fill(producer, P1, 1, producer_id=99)
        return commit(handle, cause, *arguments, **options)

    monkeypatch.setattr(DeltaLog, "commit", loses)
    return left


@pytest.mark.parametrize("what", ["truncation", "deletion", "retention"])
def test_tr_05_what_is_left_is_written_once_however_often_others_come_between(log, monkeypatch, written, what):
    if what == "retention":
        raise_log_starts(log, {P0: lambda _: 8, P1: lambda _: 3}, "set up", "set up")
    log.become({P0: Role(1, STOPPED)} if what == "deletion" else {}, "set up")
    left = overtaken(monkeypatch, log, 12)
    act = {
        "truncation": lambda: truncate_logs(log, {P0: Truncation(1, 2)}, "test"),
        "deletion": lambda: delete_logs(log, [P0], "test"),
        "retention": lambda: delete_old_segments(log, 0, "test"),
    }
    before = data_files(log)
    assert act[what]() is not None
    assert not left
    assert set(written.values()) == {1}
    new = data_files(log) - before - {s.name for s in log.refresh().segments.values()}
    assert not new, "files that nobody knows were left behind"
    assert len(offsets(log, P1)) == (9 if what != "retention" else 6) + 12
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def test_tr_05_nobody_waits_for_what_is_written_again(log, monkeypatch):
    """Heartbeats and high watermarks need the log's lock."""
    original, seen = log_rewrite.rewrite, []

    def rewrite(*arguments):
        assert ends(in_background(lambda: seen.append((log.current().version, leo(log, P1)))))
        return original(*arguments)

    monkeypatch.setattr(log_rewrite, "rewrite", rewrite)
    truncate_logs(log, {P0: Truncation(1, 4)}, "test")
    assert [end for _, end in seen] == [9]
    assert offsets(log) == [0, 1, 2, 3]


def test_tr_05_what_is_left_of_a_segment_may_change_before_the_commit(log, monkeypatch, written):
    """The files written for the first plan do no harm, and are deleted."""
    ends, original = {P2: 0}, log_rewrite.rewrite

    def rewrite(*arguments):
        ends.clear()
        ends[P1] = 6
        return original(*arguments)

    monkeypatch.setattr(log_rewrite, "rewrite", rewrite)
    before, last = data_files(log), log.refresh().known(P2).batches[0].segment
    take_out(log, {"who": "test", "why": "test"}, lambda state: Removal(without_ends(state, ends)))
    assert (offsets(log, P1), offsets(log, P2)) == (list(range(6)), list(range(5)))
    assert written[last] == 2
    assert data_files(log) - before <= set(log.current().segments)


def test_tr_05_a_segment_that_goes_before_it_is_read_is_planned_anew(log, monkeypatch):
    others, write, done = ReplicaLog.open(log.root), log_rewrite._Rewriter.write, []

    def interrupted(rewriter, removal):
        if not done:
            done.append(True)
            truncate(others, {P0: 0, P1: 0})
            log.refresh()
        write(rewriter, removal)

    monkeypatch.setattr(log_rewrite._Rewriter, "write", interrupted)
    truncate_logs(log, {P0: Truncation(1, 2)}, "test")
    assert (leo(log, P0), leo(log, P1), leo(log, P2)) == (0, 0, 5)


def test_tr_05_a_write_that_fails_leaves_nothing_behind(log, monkeypatch):
    """A full disk must not be filled further at each attempt."""
    raise_log_starts(log, {P0: lambda _: 8, P1: lambda _: 3}, "test", "test")

    def fails(*_):
        raise KafkaStorageException("no space left")

    monkeypatch.setattr(log_rewrite, "write_snapshot", fails)
    before = data_files(log)
    with pytest.raises(KafkaStorageException, match="no space left"):
        delete_old_segments(log, 0, "test")
    assert data_files(log) == before


def test_tr_05_a_truncation_whose_answer_was_lost_has_been_made(log, monkeypatch):
    lost = lose_an_answer(monkeypatch)
    truncate_logs(log, {P0: Truncation(1, 4)}, "test")
    assert (len(lost), offsets(log)) == (1, [0, 1, 2, 3])
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def test_tr_05_files_of_a_commit_of_which_nothing_is_heard_stay(log, monkeypatch):
    """The commit may have landed. Deleting its files would lose records."""
    with monkeypatch.context() as patched:
        land_unheard(patched)
        with pytest.raises(KafkaStorageException, match="cannot be written"):
            truncate_logs(log, {P0: Truncation(1, 4)}, "test")
    opened = ReplicaLog.open(log.root)
    assert (offsets(opened, P0), offsets(opened, P1)) == (list(range(4)), list(range(9)))


WHATS = {
    "compaction": lambda log: compact(log, 1 << 20, 2, 1 << 30, "test"),
    "truncation": lambda log: truncate_logs(log, {P0: Truncation(1, 2)}, "test"),
    "retention": lambda log: delete_old_segments(log, 0, "test"),
}


@pytest.mark.parametrize("until", ["the commits are read", "a file is deleted"])
@pytest.mark.parametrize("what", WHATS)
def test_tr_05_files_of_a_commit_stay_if_the_root_is_away_for_a_moment_after_it(root, monkeypatch, what, until):
    """As when it is unmounted: it looks like a log without that commit."""
    log = new_log(f"{root}/home", P0, P1)
    for number in range(6):
        send(log, request(P0, 4, 4 * number), request(P1, 3, 3 * number))
    if what == "retention":
        raise_log_starts(log, {P0: lambda _: 24, P1: lambda _: 16}, "set up", "set up")
    elif what == "truncation":
        follow(log, P0, epoch=1)
    home, away, put = Path(root, "home"), Path(root, "away"), LocalRoot.put_if_absent
    read, delete = log_rewrite.read_commits_after, LocalRoot.delete

    def lands(*arguments):
        stamp = put(*arguments)
        home.rename(away)
        return stamp

    def come_back():
        if away.exists():
            away.rename(home)

    def comes_back_after(*arguments):
        found = read(*arguments)
        come_back()
        return found

    def comes_back_before(*arguments):
        come_back()
        delete(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(LocalRoot, "put_if_absent", lands)
        if until == "the commits are read":
            patched.setattr(log_rewrite, "read_commits_after", comes_back_after)
        patched.setattr(LocalRoot, "delete", comes_back_before)
        with pytest.raises(KafkaStorageException):
            WHATS[what](log)
    come_back()
    opened = ReplicaLog.open(log.root)
    assert opened.current().version == log.current().version + 1
    assert not opened.current().broken


def test_tr_05_files_of_a_commit_stay_if_the_commits_before_it_were_cleaned_up(log, monkeypatch):
    """Nobody can then tell from the log what it was."""
    commit = DeltaLog.commit

    def cleans_up(handle, *arguments, **options):
        version = commit(handle, *arguments, **options)
        drop_commits_before(log.root, version)
        log.root.delete(commit_name(version))
        raise KafkaStorageException("timed out")

    before = data_files(log)
    monkeypatch.setattr(DeltaLog, "commit", cleans_up)
    with pytest.raises(KafkaStorageException, match="timed out"):
        truncate_logs(log, {P0: Truncation(1, 2)}, "test")
    assert data_files(log) > before


def test_tr_05_a_plan_that_never_holds_is_an_error_in_the_end(log, monkeypatch):
    monkeypatch.setattr(log_rewrite, "_MAX_ROUNDS", 5)
    counts = iter(range(10**6))

    def restless(state):
        return Removal(without_ends(state, {P2: 0} if next(counts) % 2 else {P1: 6}))

    before = data_files(log)
    with pytest.raises(KafkaStorageException, match="have changed 5 times"):
        take_out(log, {"who": "test", "why": "test"}, restless)
    assert data_files(log) == before


def test_ft_12_a_segment_that_cannot_be_read_takes_only_its_own_partitions_offline_when_others_are_truncated(log):
    name = shared(log)
    heal = unreadable(log, name)
    follow(log, P2, epoch=1)
    assert truncate_logs(log, {P0: Truncation(1, 0), P2: Truncation(1, 0)}, "test") is not None
    state = log.refresh()
    assert [name in (state.fault(p) or "") for p in (P0, P1, P2)] == [True, True, False]
    assert leo(log, P2) == 0
    assert truncate_logs(log, {P0: Truncation(1, 0)}, "test") is None, "what is broken is left alone"
    heal()
    assert log.scrub()
    assert truncate_logs(log, {P0: Truncation(1, 0)}, "test") is not None
    assert (offsets(log), offsets(log, P1), offsets(log, P2)) == ([], list(range(9)), [])


@pytest.mark.parametrize("what", ["deletion", "retention"])
def test_ft_13_what_is_deleted_is_deleted_around_a_segment_that_cannot_be_read(log, what):
    name = shared(log)
    unreadable(log, name)
    if what == "deletion":
        log.become({P0: Role(1, STOPPED), P2: Role(1, STOPPED)}, "test")
        delete_logs(log, [P0, P2], "test")
        assert (leo(log, P2), offsets_left(log, P0)) == (0, 4)
    else:
        send(log, request(P1, 1, 9), request(P2, 9, 5))
        raise_log_starts(log, {P0: lambda _: 4, P1: lambda _: 2, P2: lambda _: 14}, "test", "test")
        delete_old_segments(log, 0, "test")
        assert (offsets_left(log, P2), log.refresh().known(P2).log_start_offset) == (0, 14)
    assert name in log.refresh().broken


def offsets_left(log, partition):
    """How many records of a partition still lie in segments."""
    return sum(batch.header.records for batch in log.refresh().known(partition).batches)


def test_ft_12_a_store_that_does_not_hand_a_segment_out_is_no_broken_segment(log, monkeypatch):
    unreadable(log, shared(log))

    def unreachable(*_):
        raise KafkaStorageException("timed out")

    monkeypatch.setattr(LocalRoot, "read", unreachable)
    with pytest.raises(KafkaStorageException, match="timed out"):
        truncate_logs(log, {P0: Truncation(1, 2)}, "test")
    assert not log.current().broken


def test_ap_06_a_snapshot_that_has_broken_is_written_again_from_memory(log):
    raise_log_starts(log, {P0: lambda _: 8}, "test", "test")
    delete_old_segments(log, 0, "test")
    follow(log, P0, epoch=1)
    truncate(log, {P1: 0})
    known = dict(log.refresh().partition(P0).producers)
    (snapshot,) = [name for name in log.current().segments if is_snapshot(name)]
    log.root.delete(snapshot)
    log.scrub()
    raise_log_starts(log, {P2: lambda _: 5}, "test", "test")
    delete_old_segments(log, 0, "test")
    assert ReplicaLog.open(log.root).refresh().partition(P0).producers == known


class Growing(dict):
    """Any access lets an append happen, as another thread may at any time."""

    def __init__(self, state):
        super().__init__()
        self._state = state

    def __contains__(self, name):
        self._state.segments[f"new-{len(self._state.segments)}"] = next(iter(self._state.segments.values()))
        return False


def test_ev_01_segments_may_be_looked_through_while_a_producer_appends(log):
    state = log.refresh()
    state.broken = Growing(state)
    assert len(readable(state)) == 3


class Recalling(dict):
    """Asking for a topic's name lets another thread ask about a partition that the log does not know yet."""

    def __init__(self, state):
        super().__init__()
        self._state = state

    def get(self, name, default=None):
        self._state.known(TopicIdPartition("another-id", len(self._state.partitions())))
        return default


def test_ev_01_partitions_may_be_looked_through_while_others_are_asked_about(log):
    state = log.refresh()
    log.root.delete(shared(log))
    log.scrub()
    state.topics = Recalling(state)
    assert state.broken_for_nobody() == []
