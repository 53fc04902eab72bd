"""Compaction: the same batches in fewer files, unnoticed by readers and writers."""

import hashlib
from collections import Counter

import pytest

from lakelog.replication.errors import CorruptRecordException, DuplicateSequenceException, KafkaStorageException
from lakelog.replication.protocol.compaction import size_class
from lakelog.replication.storage.delta.commit_format import read_commit
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.log import log_compaction, pieces
from lakelog.replication.storage.log.log_append import Appended
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import read_records
from tests.storage.delta.answers import land_unheard, lose_an_answer
from tests.storage.logs import (
    P0,
    P1,
    facts,
    fill,
    leo,
    new_log,
    numbered,
    offsets,
    records,
    request,
    send,
    truncate,
    values,
)

SEGMENT, MANY = 32 * 1024 * 1024, 256 * 1024 * 1024


@pytest.fixture
def log(root):
    """Ten files of both partitions, ten of the first alone."""
    log = new_log(root, P0, P1)
    for number in range(10):
        send(log, request(P0, 3, 3 * number), request(P1, 2, 2 * number))
    fill(log, P0, *[2] * 10)
    return log


def merge(log, min_files=4, segment_bytes=SEGMENT):
    return compact(log, segment_bytes, min_files, MANY, "test")


def content(log):
    """Each partition's rows and history, without the files that hold them."""
    state = log.refresh()
    digests = {p: hashlib.sha256(str(log.read(p, 0).to_pylist()).encode()).hexdigest() for p in (P0, P1)}
    headers = {p: [batch.header for batch in state.partition(p).batches] for p in (P0, P1)}
    known = {p: (state.partition(p).lineage, state.partition(p).producers) for p in (P0, P1)}
    return digests, headers, known


def test_na_04_the_same_batches_lie_in_a_file_a_partition(log):
    before = content(log)
    assert merge(log) == 20
    assert content(log) == before
    assert [Counter(h.partition for h in s.headers) for s in log.current().segments.values()] == [
        Counter({0: 20}), Counter({1: 10}),
    ]  # fmt: skip
    assert facts(ReplicaLog.open(log.root)) == facts(log)
    assert merge(log) == 0


def test_na_04_ap_06_a_repeat_is_told_from_other_records_after_a_compaction(log):
    merge(log)
    for handle in (log, ReplicaLog.open(log.root)):
        (other, again) = send(
            handle, request(P0, 3, 3), request(P1, 2, 2), tables={P0: numbered(3, 9), P1: numbered(2)}
        )
        assert isinstance(other, DuplicateSequenceException)
        assert again == Appended(2, 3, duplicate=True, leader_epoch=0)


def test_na_04_no_data_changes(log):
    """So Spark's streams and the followers' streams skip it."""
    merge(log)
    commit = read_commit(log.root, log.current().version)
    assert [file.data_change for file in (*commit.adds, *commit.removes)] == [False] * 22
    assert (commit.info["why"], commit.info["from"], commit.info["to"]) == ("compact", 20, 2)
    assert commit.adds[0].stats.count('"numRecords": 50') == 1


def test_na_04_batches_of_every_size_keep_every_record(root):
    log = new_log(root, P0, P1)
    for number in range(1, 11):
        (end, other) = leo(log, P0), leo(log, P1)
        send(log, request(P0, number, end), request(P1, 11 - number, other))
    before = content(log)
    assert merge(log) == 10
    assert content(log) == before
    assert [len(offsets(log, p)) for p in (P0, P1)] == [55, 55]
    assert sum(read_records(log.root, name).num_rows for name in log.current().segments) == 110


def test_na_04_what_compresses_well_is_merged_once_and_then_left_alone(root):
    """Its records are fifty times as large as its file. By that size every result would be merged again."""
    log, values = new_log(root, P0), [b"a line of a log, as all the others %d" % n for n in range(20_000)]
    send(log, request(P0, len(values)), tables={P0: records(*values)}, segment_bytes=256 * 1024)
    before, count = content(log), len(log.current().segments)
    limits = 256 * 1024, 4, 8 * 1024 * 1024, "test"
    replaced = compact(log, *limits)
    assert len(log.current().segments) <= count - replaced // 2
    assert [compact(log, *limits) for _ in range(3)] == [0, 0, 0]
    assert content(log) == before


@pytest.mark.parametrize("fails_at", [0, 1])
def test_na_04_a_compaction_that_fails_leaves_no_file_behind(log, monkeypatch, fails_at):
    """Otherwise each round would fill a full disk further."""
    original, written = log_compaction.write_pieces, []

    def write(*arguments):
        if len(written) == fails_at:
            raise KafkaStorageException("no space left")
        written.append(original(*arguments))
        return written[-1]

    monkeypatch.setattr(log_compaction, "write_pieces", write)
    files = set(log.root.list())
    with pytest.raises(KafkaStorageException, match="no space left"):
        merge(log)
    assert set(log.root.list()) == files


def test_na_04_a_compaction_whose_commit_fails_on_a_full_disk_leaves_no_file_behind(log, monkeypatch):
    """On a local disk such a commit lands later neither."""
    files = set(log.root.list())

    def is_full(root, name, _):
        raise KafkaStorageException(f"{root.path(name)}: cannot be written: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LocalRoot, "put_if_absent", is_full)
        with pytest.raises(KafkaStorageException, match="No space left on device"):
            merge(log)
    assert set(log.root.list()) == files
    assert merge(log) == 20


def test_na_04_a_merged_file_that_is_removed_at_once_stays_for_its_readers(log, monkeypatch):
    """Another commit removes it before the compaction has returned. A scan of the version between them needs it."""
    others, transact, scanned = ReplicaLog.open(log.root), ReplicaLog.transact, []

    def overtaken(held, cause, *given, **named):
        version = transact(held, cause, *given, **named)
        if cause["why"] == "compact":
            scanned.extend(held.current().segments)
            truncate(others, {P0: 3, P1: 3})
            held.refresh()
        return version

    monkeypatch.setattr(ReplicaLog, "transact", overtaken)
    merge(log)
    gone = set(scanned) - set(log.current().segments)
    assert gone
    assert set(scanned) <= set(log.root.list())


def test_na_04_files_of_a_compaction_of_which_nothing_is_heard_stay(log, monkeypatch):
    before = content(log)
    with monkeypatch.context() as patched:
        land_unheard(patched)
        with pytest.raises(KafkaStorageException, match="cannot be written"):
            merge(log)
    assert content(ReplicaLog.open(log.root)) == before
    assert len(ReplicaLog.open(log.root).current().segments) == 2


def test_ft_05_what_a_merge_writes_is_no_new_segment(log):
    reader = NewSegments(log.root, 1)
    reader.begin()
    merge(log)
    fill(log, P0, 2)
    rows = reader.read()
    (added,) = log.current().partition(P0).batches[-1:]
    assert [file.name for _, file, _ in rows] == [added.segment]


def test_na_04_files_are_of_a_segments_size_at_most(log):
    merge(log, segment_bytes=4096)
    names = [s.name for s in log.current().segments.values()]
    assert len(names) > 2
    assert offsets(log) == list(range(50))


def test_na_04_the_next_compaction_takes_the_last_ones_result_along(log):
    merge(log)
    fill(log, P0, *[1] * 4)
    assert merge(log) == 6
    assert Counter((h.partition, s.name) for s in log.current().segments.values() for h in s.headers) == {
        (p, n): 24 if p == 0 else 10
        for p, n in {(h.partition, s.name) for s in log.current().segments.values() for h in s.headers}
    }
    held = Counter(size_class(s.file.size, SEGMENT) for s in log.current().segments.values())
    assert held == {0: 2}
    assert offsets(log) == list(range(54))


@pytest.mark.parametrize("what", ["truncation", "retention"])
def test_na_04_what_has_gone_meanwhile_does_not_come_back(log, what, monkeypatch):
    """Between the writing of the new files and their commit, one of the old ones goes."""
    others, original = ReplicaLog.open(log.root), log_compaction._merge

    def interrupted(*arguments):
        yield from original(*arguments)
        if what == "truncation":
            truncate(others, {P0: 45})
        else:
            raise_log_starts(others, {P0: lambda _: 6, P1: lambda _: 4}, "test", "test")
            delete_old_segments(others, 0, "test")

    monkeypatch.setattr(log_compaction, "_merge", interrupted)
    files = set(log.root.list())
    assert merge(log) == 0
    assert offsets(log) == (list(range(44)) if what == "truncation" else list(range(6, 50)))
    left = {name for name in set(log.root.list()) - files if name.startswith("compacted")}
    assert left <= set(log.current().segments), "a file that nobody knows was left behind"


def test_na_04_a_commit_whose_answer_was_lost_has_been_made(log, monkeypatch):
    before, lost = content(log), lose_an_answer(monkeypatch)
    assert (merge(log), len(lost)) == (20, 1)
    assert content(log) == before


def test_na_04_a_compaction_that_loses_a_batch_is_refused(log):
    segments = list(log.refresh().segments.values())
    change = LogChange(adds=(), removes=tuple(segments[:1]), data_change=False)
    with pytest.raises(CorruptRecordException, match="refused a compaction that does not keep every batch"):
        log.transact({"why": "test"}, lambda _: change)


def test_tr_05_a_compacted_log_is_truncated_like_any_other(log):
    merge(log)
    truncate(log, {P0: 7})
    assert (offsets(log), values(log, P1)) == (list(range(6)), values(ReplicaLog.open(log.root), P1))
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def test_na_04_a_file_that_another_tool_has_written_is_read_by_its_rows(log, monkeypatch):
    """If the rows are not in the order of the headers, it searches for them."""
    before = content(log)
    monkeypatch.setattr(pieces, "_is_batch", lambda *_: False)
    assert merge(log) == 20
    assert content(log) == before


def test_na_04_the_pace_hears_of_each_file_that_was_read_or_written(log):
    read, heard = [s.file.size for s in log.refresh().segments.values()], []
    assert compact(log, SEGMENT, 4, MANY, "test", heard.append) == 20
    written = [s.file.size for s in log.current().segments.values()]
    assert sorted(heard) == sorted([*read, *written])


@pytest.mark.parametrize("files", [1, 20, 21, 22])
def test_na_04_a_compaction_that_is_given_up_leaves_nothing_behind(log, files):
    class GivenUp(Exception):
        pass

    def give_up(_, heard=[]):  # noqa: B006
        heard.append(1)
        if len(heard) == files:
            raise GivenUp

    before, names = content(log), set(log.root.list())
    with pytest.raises(GivenUp):
        compact(log, SEGMENT, 4, MANY, "test", give_up)
    assert (content(log), set(log.root.list())) == (before, names)
