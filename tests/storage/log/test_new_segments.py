"""The segments that a leader's log has gained since an offset."""

from unittest.mock import ANY

import pytest

from lakelog.replication.protocol.partition_log import Role
from lakelog.replication.storage.delta.commit_reader import commit_name
from lakelog.replication.storage.log import new_segments
from lakelog.replication.storage.log.delete_records import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.new_segments import LogOffset, NewSegments
from lakelog.replication.storage.log.replica_log import LogChange
from lakelog.replication.storage.log.segment import write_segment
from lakelog.replication.storage.log.segment_name import is_snapshot
from tests.storage.log.test_replay import clean_up
from tests.storage.logs import P0, P1, P2, fill, header, lead, log_rows, new_log, request, send, truncate

START = LogOffset(1)


@pytest.fixture
def log(root):
    """Broker 1 leads P0 and P1; its log's version is 1."""
    return new_log(root, P0, P1)


@pytest.fixture
def reader(log):
    return NewSegments(log.root, 1)


def read(reader, start, *bound):
    found, end, _ = reader.read(start, *bound)
    return found, end


def batches(log, rows):
    """The batches of the rows' segments: version, partition, first and last offset."""
    segments = log.current().segments
    return [
        (row.version, header.partition, header.base_offset, header.last_offset)
        for row in rows
        for header in segments[row.file.name].headers
    ]


def at(log, files=0):
    return LogOffset(log, files)


def follow_commit(log, count=1, first=0):
    """A commit of segments that broker 2 has led and broker 1 only copied."""
    segments = tuple(
        write_segment(log.root, 2, log_rows(P2, first + n, 1), [header(P2, first + n, first + n)]) for n in range(count)
    )
    log.transact({"why": "follower"}, lambda _: LogChange(adds=segments))
    return segments


@pytest.fixture
def opened(monkeypatch):
    """The commits that are read."""
    seen, commit = [], new_segments.read_commit

    def reads(root, version):
        found = commit(root, version)
        seen.append(version)
        return found

    monkeypatch.setattr(new_segments, "read_commit", reads)
    return seen


def test_ft_05_segments_come_in_the_order_of_commits(log, reader):
    fill(log, P0, 3)
    send(log, request(P1, 2), request(P0, 2, sequence=3))
    fill(log, P1, 1)
    rows, end = read(reader, START)
    assert batches(log, rows) == [(2, 0, 0, 2), (3, 0, 3, 4), (3, 1, 0, 1), (4, 1, 2, 2)]
    assert end == at(4)
    assert {row.gap for row in rows} == {None}


@pytest.mark.parametrize(("start", "versions"), [(1, [2, 3, 4]), (2, [3, 4]), (4, [])])
def test_a_stream_goes_on_from_its_offset(log, reader, start, versions):
    fill(log, P0, 1, 1, 1)
    rows, end = read(reader, at(start))
    assert [row.version for row in rows] == versions
    assert end == at(4)


def test_a_stream_begins_at_the_newest_commit(log, reader):
    fill(log, P0, 1)
    assert reader.newest() == at(2)


def test_commits_without_files_give_no_rows(log, reader):
    lead(log, P0, epoch=1)
    assert read(reader, START) == ([], at(2))


def test_a_file_that_another_broker_led_is_no_new_segment(log, reader):
    follow_commit(log)
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert batches(log, rows) == [(3, 0, 0, 0)]
    assert end == at(3)


def test_a_producer_snapshot_is_no_new_segment(log, reader):
    """Retention adds one, and a follower would be called for nothing."""
    fill(log, P0, 1, 1)
    rows, end = read(reader, START)
    assert len(rows) == 2
    raise_log_starts(log, {P0: lambda _: 2}, "test", "test")
    delete_old_segments(log, 0, "test")
    assert any(is_snapshot(name) for name in log.current().segments), "it remembers the producer"
    assert read(reader, end)[0] == []


def test_commits_that_the_leader_itself_fetched_are_read_once(log, reader, opened):
    follow_commit(log)
    follow_commit(log, first=1)
    assert read(reader, START) == ([], at(3))
    fill(log, P0, 1)
    rows, end = read(reader, at(3))
    assert (batches(log, rows), end) == ([(4, 0, 0, 0)], at(4))
    assert opened == [2, 3, 4]


def test_fe_02_bytes_bound_a_fetch_also_within_a_commit(log, reader):
    """Three replica sets: three segments in one commit, then one more commit."""
    lead(log, P2, epoch=0)
    send(log, request(P0, 1, replicas=(1, 2)), request(P1, 1, replicas=(1, 3)), request(P2, 1, replicas=(1, 4)))
    fill(log, P0, 1)
    offset, seen = at(2), []
    for expected in (at(2, 1), at(2, 2), at(3), at(4)):
        rows, end = read(reader, offset, 1)
        assert len(rows) == 1, "at least one segment, however large"
        assert reader.between(offset, end) == (rows, end)
        assert end == expected
        seen += batches(log, rows)
        offset = end
    assert sorted(seen) == [(3, 0, 0, 0), (3, 1, 0, 0), (3, 2, 0, 0), (4, 0, 1, 1)]


def test_fe_02_a_segment_that_exceeds_the_bound_is_left_to_the_next_fetch(log, reader):
    """The round would not copy it, and its partition would be read from the snapshot."""
    lead(log, P2, epoch=0)
    send(log, request(P0, 1, replicas=(1, 2)), request(P1, 1, replicas=(1, 3)), request(P2, 1, replicas=(1, 4)))
    sizes = [row.file.size for row in reader.read(at(2))[0]]
    for bound, count in ((sizes[0], 1), (sum(sizes[:2]) - 1, 1), (sum(sizes[:2]), 2), (sum(sizes) - 1, 2)):
        rows, end, is_limited = reader.read(at(2), bound)
        assert (len(rows), end, is_limited) == (count, at(2, count), True)
    rows, end, is_limited = reader.read(at(2), sum(sizes) + 1)
    assert (len(rows), end, is_limited) == (3, at(3), False)


def test_fe_02_files_of_others_do_not_count_and_stop_nothing(log, reader):
    """They fill the bound, and a fetch would look at them for ever."""
    follow_commit(log, count=3)
    fill(log, P0, 1)
    assert batches(log, read(reader, START, 1)[0]) == [(3, 0, 0, 0)]


@pytest.mark.parametrize("ends_within", [False, True])
def test_the_same_rows_come_again_between_the_same_offsets(log, reader, ends_within):
    lead(log, P2, epoch=0)
    fill(log, P0, 2)
    send(log, request(P1, 1, replicas=(1, 2)), request(P2, 1, replicas=(1, 3)))
    fill(log, P0, 2)
    end = at(3, 1) if ends_within else at(5)
    rows, _ = reader.between(at(2), end)
    assert [row.version for row in rows] == ([3, 4] if ends_within else [3, 4, 4, 5])
    assert NewSegments(log.root, 1).between(at(2), end) == (rows, end)


def test_a_cleaned_commit_is_a_gap_and_never_passed_over(log, reader):
    fill(log, P0, 1, 1, 1)
    clean_up(log.root)
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert end == at(5)
    assert rows == [(5, None, f"commits up to 5 of {log.root.uri} have been cleaned up")]
    assert reader.between(START, end) == (rows, end)


def test_a_bound_does_not_hide_that_the_start_is_gone(log, reader):
    fill(log, P0, 1, 1, 1)
    log.root.delete(commit_name(2))
    assert reader.between(at(2), at(4), 1) == ([(4, None, ANY)], at(4))


def test_a_log_that_was_made_again_is_a_gap_and_is_read_from_its_newest_commit_on(log, reader):
    fill(log, P0, 1, 1, 1)
    _, end = read(reader, START)
    log.root.delete_folder()
    again = new_log(log.root, P0)
    rows, end = read(reader, end)
    newest = again.refresh().version
    assert (rows, end) == ([(newest, None, f"{log.root.uri} was made again")], at(newest))
    fill(again, P0, 1)
    assert batches(again, read(reader, end)[0]) == [(newest + 1, 0, 0, 0)]


def test_what_one_look_does_not_read_is_read_by_the_next_ones(log, reader, monkeypatch):
    """A follower may be told once of all that has happened."""
    monkeypatch.setattr(new_segments, "FULL_LOOK", 2)
    fill(log, P0, 1, 1, 1)
    follow_commit(log)
    follow_commit(log, first=1)
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert ([row.version for row in rows], end) == ([2, 3, 4, 7], at(7))


def test_fe_02_bytes_bound_all_looks_together(log, monkeypatch):
    monkeypatch.setattr(new_segments, "FULL_LOOK", 1)
    fill(log, P0, 1, 1, 1, 1)
    sizes = [segment.file.size for segment in log.current().segments.values()]
    segments = NewSegments(log.root, 1)
    found, end, is_limited = segments.read(LogOffset(1), sizes[0] + sizes[1] + 1)
    assert ([segment.version for segment in found], end.log, is_limited) == ([2, 3], 3, True)
    found, end, is_limited = segments.read(end, 3 * sizes[3])
    assert ([segment.version for segment in found], end.log, is_limited) == ([4, 5], 5, False)


def test_what_was_truncated_and_rewritten_is_not_streamed_again(log, reader):
    """It brings nothing new: who follows under the new leader epoch begins with the snapshot, others have the rest."""
    send(log, request(P0, 4), request(P1, 4))
    (written,) = log.current().segments
    truncate(log, {P0: 2})
    assert [row.file.name for row in read(reader, START)[0]] == [written]


def test_a_role_of_another_partition_is_no_record(log, reader):
    log.become({P2: Role(3, 1)}, "test")
    assert read(reader, START)[0] == []
