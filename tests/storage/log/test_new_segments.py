"""The segments that a leader's log has gained since a version."""

from types import SimpleNamespace

import pytest

from lakelog.replication.protocol.partition_log import Role
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.data_file_name import is_snapshot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import new_segments
from lakelog.replication.storage.log.log_start import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.new_segments import NewSegments
from lakelog.replication.storage.log.replica_log import LogChange
from lakelog.replication.storage.log.segment import write_segment
from tests.storage.log.test_replay import clean_up
from tests.storage.logs import P0, P1, P2, fill, header, lead, log_rows, new_log, request, send, truncate


@pytest.fixture
def log(root):
    """Broker 1 leads P0 and P1; its log's version is 1."""
    return new_log(root, P0, P1)


@pytest.fixture
def reader(log):
    return begun(log)


def begun(log):
    made = NewSegments(log.root, 1)
    made.begin()
    return made


def batches(log, rows):
    """The batches of the rows' segments: version, partition, first and last offset."""
    segments = log.current().segments
    return [
        (row.version, header.partition, header.base_offset, header.last_offset)
        for row in rows
        for header in segments[row.file.name].headers
    ]


def follow_commit(log, count=1, first=0):
    """A commit of segments that broker 2 has led and broker 1 only copied."""
    segments = tuple(
        write_segment(log.root, 2, log_rows(P2, first + n, 1), [header(P2, first + n, first + n)]) for n in range(count)
    )
    log.transact({"why": "follower"}, lambda _: LogChange(adds=segments))
    return segments


def commits_read(monkeypatch):
    """The commits that are read from now on."""
    seen, commit = [], new_segments.read_commit

    def reads(root, version):
        found = commit(root, version)
        seen.append(version)
        return found

    monkeypatch.setattr(new_segments, "read_commit", reads)
    return seen


opened = pytest.fixture(commits_read)


def test_ft_05_segments_come_in_the_order_of_commits(log, reader):
    fill(log, P0, 3)
    send(log, request(P1, 2), request(P0, 2, sequence=3))
    fill(log, P1, 1)
    rows = reader.read()
    assert batches(log, rows) == [(2, 0, 0, 2), (3, 0, 3, 4), (3, 1, 0, 1), (4, 1, 2, 2)]
    assert reader.version == 4
    assert {row.gap for row in rows} == {None}


@pytest.mark.parametrize(("first", "then"), [(0, [2, 3, 4]), (1, [3, 4]), (3, [])])
def test_a_read_goes_on_after_the_last_one(log, reader, first, then):
    fill(log, P0, *[1] * first)
    reader.read()
    fill(log, P0, *[1] * (3 - first))
    assert [row.version for row in reader.read()] == then
    assert reader.version == 4


def test_a_reader_begins_at_the_newest_commit(log):
    fill(log, P0, 1)
    reader = begun(log)
    assert (reader.version, reader.read()) == (2, [])


def test_commits_without_files_give_no_rows(log, reader):
    lead(log, P0, epoch=1)
    assert (reader.read(), reader.version) == ([], 2)


def test_a_file_that_another_broker_led_is_no_new_segment(log, reader):
    follow_commit(log)
    fill(log, P0, 1)
    assert batches(log, reader.read()) == [(3, 0, 0, 0)]
    assert reader.version == 3


def test_a_producer_snapshot_is_no_new_segment(log, reader):
    """Retention adds one, and a follower would be called for nothing."""
    fill(log, P0, 1, 1)
    assert len(reader.read()) == 2
    raise_log_starts(log, {P0: lambda _: 2}, "test", "test")
    delete_old_segments(log, 0, "test")
    assert any(is_snapshot(name) for name in log.current().segments), "it remembers the producer"
    assert reader.read() == []


def test_commits_that_the_leader_itself_fetched_are_read_once(log, reader, opened):
    follow_commit(log)
    follow_commit(log, first=1)
    assert (reader.read(), reader.version) == ([], 3)
    fill(log, P0, 1)
    assert (batches(log, reader.read()), reader.version) == ([(4, 0, 0, 0)], 4)
    assert opened == [2, 3, 4]


def test_a_cleaned_commit_is_a_gap_and_never_passed_over(log, reader):
    fill(log, P0, 1, 1, 1)
    clean_up(log.root)
    fill(log, P0, 1)
    assert reader.read() == [(5, None, f"commits up to 5 of {log.root.uri} have been cleaned up")]
    assert (reader.version, reader.read()) == (5, [])


def test_a_log_that_began_meanwhile_is_read_whole_or_is_a_gap(root):
    late, hollow = StorageRoot.of(root).child("late"), StorageRoot.of(root).child("hollow")
    readers = [begun(SimpleNamespace(root=of)) for of in (late, hollow)]
    assert [reader.read() for reader in readers] == [[], []]
    for of in (late, hollow):
        fill(new_log(of, P0), P0, 1, 1)
    hollow.delete(commit_name(0))
    assert [row.version for row in readers[0].read()] == [2, 3]
    assert readers[1].read() == [(3, None, f"commits up to 3 of {hollow.uri} have been cleaned up")]


def test_a_log_that_was_made_again_is_a_gap_and_is_read_from_its_newest_commit_on(log, reader):
    fill(log, P0, 1, 1, 1)
    reader.read()
    log.root.delete_folder()
    again = new_log(log.root, P0)
    newest = again.refresh().version
    assert reader.read() == [(newest, None, f"{log.root.uri} was made again")]
    assert reader.version == newest
    fill(again, P0, 1)
    assert batches(again, reader.read()) == [(newest + 1, 0, 0, 0)]


def test_what_one_look_does_not_read_is_read_by_the_next_ones(log, reader, monkeypatch):
    """A follower may be told once of all that has happened."""
    monkeypatch.setattr(new_segments, "FULL_POLL", 2)
    fill(log, P0, 1, 1, 1)
    follow_commit(log)
    follow_commit(log, first=1)
    fill(log, P0, 1)
    looks = [([row.version for row in reader.read()], reader.version, reader.has_more) for _ in range(4)]
    assert looks == [([2, 3], 3, True), ([4], 5, True), ([7], 7, True), ([], 7, False)]


def test_what_was_truncated_and_rewritten_is_not_streamed_again(log, reader):
    """It brings nothing new: who follows under the new leader epoch begins with the snapshot, others have the rest."""
    send(log, request(P0, 4), request(P1, 4))
    (written,) = log.current().segments
    truncate(log, {P0: 2})
    assert [row.file.name for row in reader.read()] == [written]


def test_a_role_of_another_partition_is_no_record(log, reader):
    log.become({P2: Role(3, 1)}, "test")
    assert reader.read() == []
