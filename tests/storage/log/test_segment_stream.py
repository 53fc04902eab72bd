"""The reader of the stream of segments, without Spark: the segments between two offsets."""

from types import SimpleNamespace

import pytest
from pyspark import cloudpickle

from lakelog.replication.protocol.partition_log import Role
from lakelog.replication.storage.delta.commit_reader import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import new_segments, segment_source, segment_stream
from lakelog.replication.storage.log.delete_records import delete_old_segments, raise_log_starts
from lakelog.replication.storage.log.new_segments import LogOffset, NewSegments
from lakelog.replication.storage.log.replica_log import LogChange
from lakelog.replication.storage.log.segment import write_segment
from lakelog.replication.storage.log.segment_name import is_snapshot
from lakelog.replication.storage.log.segment_source import SegmentStreamSource
from lakelog.replication.storage.log.segment_stream import SegmentStream, SegmentStreamReader
from lakelog.schemas import NEW_SEGMENTS
from tests.storage.log.test_replay import clean_up
from tests.storage.logs import P0, P1, P2, fill, header, lead, log_rows, new_log, request, send, truncate

START = {"log": 1, "files": 0}


@pytest.fixture
def log(root):
    """Broker 1 leads P0 and P1; its log's version is 1."""
    return new_log(root, P0, P1)


def broker_root(log):
    return StorageRoot.of(log.root.uri.removesuffix("/log"))


@pytest.fixture
def reader(log):
    return SegmentStreamReader(SegmentStream(broker_root(log), 1))


def read(reader, start):
    rows, end = reader.read(start)
    return [dict(zip(NEW_SEGMENTS.names, row, strict=True)) for row in rows], end


def batches(log, rows):
    """The batches of the rows' segments: version, partition, first and last offset."""
    segments = log.current().segments
    return [
        (row["version"], header.partition, header.base_offset, header.last_offset)
        for row in rows
        for header in segments[row["segment"]].headers
    ]


def at(log, files=0):
    return {"log": log, "files": files}


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
    assert {row["gap"] for row in rows} == {None}


@pytest.mark.parametrize(("start", "versions"), [(1, [2, 3, 4]), (2, [3, 4]), (4, [])])
def test_a_stream_goes_on_from_its_offset(log, reader, start, versions):
    fill(log, P0, 1, 1, 1)
    rows, end = read(reader, at(start))
    assert [row["version"] for row in rows] == versions
    assert end == at(4)


def test_a_stream_begins_at_the_newest_commit(log, reader):
    fill(log, P0, 1)
    assert reader.initialOffset() == at(2)


def test_commits_without_files_give_no_rows(log, reader):
    lead(log, P0, epoch=1)
    assert read(reader, START) == ([], START)


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
    assert read(reader, end) == ([], end)


def test_what_the_leader_itself_follows_moves_no_offset_and_is_read_once(log, reader, opened):
    follow_commit(log)
    follow_commit(log, first=1)
    assert read(reader, START) == ([], START)
    assert opened == [2, 3]
    assert read(reader, START) == ([], START)
    assert opened == [2, 3]
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert (batches(log, rows), end) == ([(4, 0, 0, 0)], at(4))


def test_many_commits_without_segments_move_the_offset_all_the_same(log, reader, monkeypatch):
    """The follower reads each commit once more, when its leader appends again: that must not be all since long ago."""
    monkeypatch.setattr(segment_stream, "_FAR", 3)
    for number in range(2):
        follow_commit(log, first=number)
        assert read(reader, START) == ([], START)
    follow_commit(log, first=2)
    assert read(reader, START) == ([], at(4))
    assert read(reader, at(4)) == ([], at(4))
    fill(log, P0, 1)
    assert batches(log, read(reader, at(4))[0]) == [(5, 0, 0, 0)]


def test_fe_02_bytes_bound_a_micro_batch_also_within_a_commit(root, log):
    """Three replica sets: three segments in one commit, then one more commit."""
    lead(log, P2, epoch=0)
    send(log, request(P0, 1, replicas=(1, 2)), request(P1, 1, replicas=(1, 3)), request(P2, 1, replicas=(1, 4)))
    fill(log, P0, 1)
    reader, offset, seen = SegmentStreamReader(SegmentStream(StorageRoot.of(root), 1, max_bytes=1)), at(2), []
    for expected in (at(2, 1), at(2, 2), at(3), at(4)):
        rows, end = read(reader, offset)
        assert len(rows) == 1, "at least one segment, however large"
        again = list(reader.readBetweenOffsets(offset, end))
        assert again == [tuple(row.values()) for row in rows]
        assert end == expected
        seen += batches(log, rows)
        offset = end
    assert sorted(seen) == [(3, 0, 0, 0), (3, 1, 0, 0), (3, 2, 0, 0), (4, 0, 1, 1)]


def test_fe_02_files_of_others_do_not_count_and_stop_nothing(root, log):
    """They fill the bound, and the stream would look at them for ever."""
    follow_commit(log, count=3)
    fill(log, P0, 1)
    reader = SegmentStreamReader(SegmentStream(StorageRoot.of(root), 1, max_bytes=1))
    assert batches(log, read(reader, START)[0]) == [(3, 0, 0, 0)]


@pytest.mark.parametrize("ends_within", [False, True])
def test_the_same_rows_come_again_between_the_same_offsets(log, reader, ends_within):
    lead(log, P2, epoch=0)
    fill(log, P0, 2)
    send(log, request(P1, 1, replicas=(1, 2)), request(P2, 1, replicas=(1, 3)))
    fill(log, P0, 2)
    end = at(3, 1) if ends_within else at(5)
    rows = list(reader.readBetweenOffsets(at(2), end))
    assert [row[0] for row in rows] == ([3, 4] if ends_within else [3, 4, 4, 5])
    assert rows == list(SegmentStreamReader(reader._stream).readBetweenOffsets(at(2), end))


def test_a_cleaned_commit_is_a_gap_and_never_passed_over(log, reader):
    fill(log, P0, 1, 1, 1)
    clean_up(log.root)
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert end == at(5)
    assert [(row["version"], row["segment"]) for row in rows] == [(5, None)]
    assert rows[0]["gap"] == f"commits up to 5 of {log.root.uri} have been cleaned up"
    assert list(reader.readBetweenOffsets(START, end)) == [tuple(rows[0].values())]


def test_what_one_look_does_not_read_is_read_by_the_next_ones(log, reader, monkeypatch):
    """A reader may be called once for all that has happened."""
    monkeypatch.setattr(new_segments, "_AHEAD", 2)
    fill(log, P0, 1, 1, 1)
    follow_commit(log)
    follow_commit(log, first=1)
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert ([row["version"] for row in rows], end) == ([2, 3, 4, 7], at(7))


def test_fe_02_bytes_bound_all_looks_together(log, monkeypatch):
    monkeypatch.setattr(new_segments, "_AHEAD", 1)
    fill(log, P0, 1, 1, 1, 1)
    sizes = [segment.file.size for segment in log.current().segments.values()]
    segments = NewSegments(log.root, 1)
    found, end, is_limited = segments.read(LogOffset(1), sizes[0] + sizes[1] + 1)
    assert ([segment.version for segment in found], end.log, is_limited) == ([2, 3, 4], 4, True)
    found, end, is_limited = segments.read(end, 2 * sizes[3])
    assert ([segment.version for segment in found], end.log, is_limited) == ([5], 5, False)


def test_what_was_truncated_and_rewritten_is_not_streamed_again(log, reader):
    """It brings nothing new: who follows under the new leader epoch begins with the snapshot, others have the rest."""
    send(log, request(P0, 4), request(P1, 4))
    (written,) = log.current().segments
    truncate(log, {P0: 2})
    assert [row["segment"] for row in read(reader, START)[0]] == [written]


def test_a_log_is_looked_at_once_a_poll_interval(root, log, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(segment_stream, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    reader = SegmentStreamReader(SegmentStream(StorageRoot.of(root), 1, poll_interval_ms=200))
    assert read(reader, START) == ([], START)
    fill(log, P0, 1)
    for seconds, rows in ((0.1, 0), (0.09, 0), (0.02, 1)):
        clock[0] += seconds
        assert len(read(reader, START)[0]) == rows


@pytest.fixture
def clock(monkeypatch):
    """A clock that waiting moves; `then` has what happens at the end of each wait."""

    class Clock:
        now, waits, then = 100.0, [], []

        def monotonic(self):
            return self.now

        def wait(self, seconds):
            self.waits.append(round(seconds, 3))
            self.now += seconds
            if self.then:
                self.then.pop(0)()

    made = Clock()
    monkeypatch.setattr(segment_stream, "time", made)
    monkeypatch.setattr(segment_stream, "threading", SimpleNamespace(Event=lambda: made))
    return made


def test_an_idle_stream_waits_for_segments_and_answers_at_once_when_there_are_some(root, log, clock):
    """Each question of Spark's costs more than many looks."""
    stream = SegmentStream(StorageRoot.of(root), 1, poll_interval_ms=250, wait_max_ms=625)
    reader = SegmentStreamReader(stream)
    assert (read(reader, START), clock.waits) == (([], START), []), "a query begins with its first answer"
    assert read(reader, START) == ([], START)
    assert clock.waits == [0.25, 0.25, 0.125], "no look comes early, and the answer not late"
    clock.waits.clear()
    clock.then += [int, lambda: follow_commit(log), lambda: fill(log, P0, 1)]
    assert len(read(reader, START)[0]) == 1
    assert clock.waits == [0.125, 0.25, 0.25]


def test_spark_can_send_a_reader_to_its_workers(log, reader):
    fill(log, P0, 1)
    assert read(reader, START) == read(cloudpickle.loads(cloudpickle.dumps(reader)), START)


def test_available_now_ends_with_what_was_there_when_it_began(log, reader):
    fill(log, P0, 1)
    reader.prepareForTriggerAvailableNow()
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert ([row["version"] for row in rows], end["log"]) == ([2], 2)
    assert read(reader, end) == ([], end)
    assert last_version(log.root) == 3


def test_a_reader_is_made_of_options(root):
    options = {"source": f"{root}/a", "leader": "3"}
    stream = SegmentStreamSource(options).simpleStreamReader(None)._stream
    assert stream == SegmentStream(StorageRoot.of(f"{root}/a"), 3)


def test_the_options_of_a_stream_make_the_same_stream(root):
    class Session:
        """Spark's session, and its reader of streams: records the options."""

        def __init__(self):
            self.dataSource = self.readStream = self

        def register(self, _):
            pass

        def format(self, _):
            return self

        def options(self, **given):
            self.given = given
            return self

        def load(self):
            return SegmentStreamSource(self.given).simpleStreamReader(None)._stream

    stream = SegmentStream(StorageRoot.of(f"{root}/a"), 3, "broker-2:ReplicaFetcherThread-0-3", 100, 50, 500)
    assert segment_source.stream_segments(Session(), stream) == stream


def test_a_source_takes_what_it_knows_of_its_root_along_to_a_worker():
    """Options have the URI alone; a class that is pickled by its name would have nothing else."""
    known = StorageRoot.of("s3://bucket/broker-3", {"AWS_SECRET_ACCESS_KEY": "secret"}, timeout_ms=2000)
    source = cloudpickle.loads(cloudpickle.dumps(segment_source._source_with("a_format", known)))
    assert source.name() == "a_format"
    stream = source({"source": known.uri, "leader": "3"}).simpleStreamReader(None)._stream
    assert (stream.source, stream.source.options) == (known, {"AWS_SECRET_ACCESS_KEY": "secret"})


def test_a_format_is_registered_once_and_shared_by_no_two_streams():
    """Spark warns of a second one. Queries that share one fail if one of them starts while the other makes its tasks:
    Spark changes the environment in the registered function then."""

    class Session:
        def __init__(self):
            self.names, self.dataSource = [], self

        def register(self, source):
            self.names.append(source.name())

    session, other = Session(), Session()
    disk, bucket = StorageRoot.of("/a"), StorageRoot.of("s3://bucket/b", {"AWS_REGION": "eu"})
    moved = StorageRoot.of("s3://bucket/b", {"AWS_REGION": "us"})
    streams = [SegmentStream(disk, 1, "fetcher 0"), SegmentStream(disk, 1, "fetcher 1")]
    streams += [SegmentStream(bucket, 1), SegmentStream(moved, 1)]
    names = [segment_source._format_for(session, stream) for stream in [*streams, *streams]]
    assert names[:4] == names[4:] == session.names
    assert len(set(names)) == 4
    assert segment_source._format_for(other, streams[0]) not in names
    assert len(other.names) == 1


def test_a_role_of_another_partition_is_no_record(log, reader):
    log.become({P2: Role(3, 1)}, "test")
    assert read(reader, START)[0] == []
