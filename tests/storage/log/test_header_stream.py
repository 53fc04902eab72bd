"""The reader of the header stream, without Spark: the headers between two offsets."""

from types import SimpleNamespace

import pytest
from pyspark import cloudpickle

from lakelog.replication.protocol.partition_log import Role
from lakelog.replication.storage.delta.commit_reader import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import header_source, header_stream
from lakelog.replication.storage.log.header_source import RecordBatchSource
from lakelog.replication.storage.log.header_stream import HeaderStream, RecordBatchReader
from lakelog.replication.storage.log.replica_log import LogChange
from lakelog.replication.storage.log.segment import write_segment
from lakelog.schemas import RECORD_BATCHES
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
    return RecordBatchReader(HeaderStream(broker_root(log), 1))


def read(reader, start):
    rows, end = reader.read(start)
    return [dict(zip(RECORD_BATCHES.names, row, strict=True)) for row in rows], end


def batches(rows):
    return [(row["version"], row["partition"], row["base_offset"], row["last_offset"]) for row in rows]


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
    """The segments whose footers are read, and the commits."""
    seen = []
    segment, commit = header_stream.read_segment, header_stream.read_commit
    monkeypatch.setattr(header_stream, "read_segment", lambda root, file: seen.append(file.name) or segment(root, file))

    def reads(root, version):
        found = commit(root, version)
        seen.append(version)
        return found

    monkeypatch.setattr(header_stream, "read_commit", reads)
    return seen


def test_ft_05_headers_come_in_the_order_of_commits(log, reader):
    fill(log, P0, 3)
    send(log, request(P1, 2), request(P0, 2, sequence=3))
    fill(log, P1, 1)
    rows, end = read(reader, START)
    assert batches(rows) == [(2, 0, 0, 2), (3, 0, 3, 4), (3, 1, 0, 1), (4, 1, 2, 2)]
    assert end == at(4)
    segments = log.current().segments
    for row in rows:
        assert row["segment_bytes"] == segments[row["segment"]].file.size
        assert (row["topic"], row["topic_id"], row["leader_epoch"], row["gap"]) == ("flights", P0.topic_id, 0, None)


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


def test_a_file_that_another_broker_led_is_not_opened(log, reader, opened):
    (foreign,) = follow_commit(log)
    log.root.delete(foreign.name)
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert batches(rows) == [(3, 0, 0, 0)]
    assert end == at(3)
    assert foreign.name not in opened


def test_what_the_leader_itself_follows_moves_no_offset_and_is_read_once(log, reader, opened):
    follow_commit(log)
    follow_commit(log, first=1)
    assert read(reader, START) == ([], START)
    assert opened == [2, 3]
    assert read(reader, START) == ([], START)
    assert opened == [2, 3]
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert (batches(rows), end) == ([(4, 0, 0, 0)], at(4))


def test_fe_02_bytes_bound_a_micro_batch_also_within_a_commit(root, log):
    """Three replica sets: three segments in one commit, then one more commit."""
    lead(log, P2, epoch=0)
    send(log, request(P0, 1, replicas=(1, 2)), request(P1, 1, replicas=(1, 3)), request(P2, 1, replicas=(1, 4)))
    fill(log, P0, 1)
    reader, offset, seen = RecordBatchReader(HeaderStream(StorageRoot.of(root), 1, max_bytes=1)), at(2), []
    for expected in (at(2, 1), at(2, 2), at(3), at(4)):
        rows, end = read(reader, offset)
        assert len(rows) == 1, "at least one segment, however large"
        again = list(reader.readBetweenOffsets(offset, end))
        assert again == [tuple(row.values()) for row in rows]
        assert end == expected
        seen += batches(rows)
        offset = end
    assert sorted(seen) == [(3, 0, 0, 0), (3, 1, 0, 0), (3, 2, 0, 0), (4, 0, 1, 1)]


def test_fe_02_files_of_others_do_not_count_and_stop_nothing(root, log):
    """They fill the bound, and the stream would look at them for ever."""
    follow_commit(log, count=3)
    fill(log, P0, 1)
    reader = RecordBatchReader(HeaderStream(StorageRoot.of(root), 1, max_bytes=1))
    assert batches(read(reader, START)[0]) == [(3, 0, 0, 0)]


@pytest.mark.parametrize("ends_within", [False, True])
def test_the_same_rows_come_again_between_the_same_offsets(log, reader, ends_within):
    lead(log, P2, epoch=0)
    fill(log, P0, 2)
    send(log, request(P1, 1, replicas=(1, 2)), request(P2, 1, replicas=(1, 3)))
    fill(log, P0, 2)
    end = at(3, 1) if ends_within else at(5)
    rows = list(reader.readBetweenOffsets(at(2), end))
    assert [row[0] for row in rows] == ([3, 4] if ends_within else [3, 4, 4, 5])
    assert rows == list(RecordBatchReader(reader._stream).readBetweenOffsets(at(2), end))


def test_a_cleaned_commit_is_a_gap_and_never_passed_over(log, reader):
    fill(log, P0, 1, 1, 1)
    clean_up(log.root)
    fill(log, P0, 1)
    rows, end = read(reader, START)
    assert end == at(5)
    assert [(row["version"], row["segment"]) for row in rows] == [(5, None)]
    assert rows[0]["gap"] == f"commits up to 5 of {log.root.uri} have been cleaned up"
    assert list(reader.readBetweenOffsets(START, end)) == [tuple(rows[0].values())]


def test_a_missing_segment_is_a_gap_that_names_it_and_the_others_go_on(log, reader):
    fill(log, P0, 1, 1)
    first, second = log.current().segments
    log.root.delete(first)
    rows, end = read(reader, START)
    assert end == at(3)
    assert [(row["version"], row["segment"]) for row in rows] == [(2, None), (3, second)]
    assert f"{first}: is gone" in rows[0]["gap"]


def test_what_was_truncated_and_rewritten_is_not_streamed_again(log, reader):
    """It brings nothing new: who follows under the new leader epoch begins with the snapshot, others have the rest."""

    send(log, request(P0, 4), request(P1, 4))
    truncate(log, {P0: 2})
    assert batches(read(reader, START)[0]) == [(2, 0, 0, 3), (2, 1, 0, 3)]


def test_a_log_is_looked_at_once_a_poll_interval(root, log, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(header_stream, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    reader = RecordBatchReader(HeaderStream(StorageRoot.of(root), 1, poll_interval_ms=200))
    assert read(reader, START) == ([], START)
    fill(log, P0, 1)
    for seconds, rows in ((0.1, 0), (0.09, 0), (0.02, 1)):
        clock[0] += seconds
        assert len(read(reader, START)[0]) == rows


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
    stream = RecordBatchSource(options).simpleStreamReader(None)._stream
    assert stream == HeaderStream(StorageRoot.of(f"{root}/a"), 3)


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
            return RecordBatchSource(self.given).simpleStreamReader(None)._stream

    stream = HeaderStream(StorageRoot.of(f"{root}/a"), 3, "broker-2:ReplicaFetcherThread-0-3", 100, 50)
    assert header_source.read_headers(Session(), stream) == stream


def test_a_source_takes_what_it_knows_of_its_root_along_to_a_worker():
    """Options have the URI alone; a class that is pickled by its name would have nothing else."""
    known = StorageRoot.of("s3://bucket/broker-3", {"AWS_SECRET_ACCESS_KEY": "secret"}, timeout_ms=2000)
    source = cloudpickle.loads(cloudpickle.dumps(header_source._source_with("a_format", known)))
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
    streams = [HeaderStream(disk, 1, "fetcher 0"), HeaderStream(disk, 1, "fetcher 1")]
    streams += [HeaderStream(bucket, 1), HeaderStream(moved, 1)]
    names = [header_source._format_for(session, stream) for stream in [*streams, *streams]]
    assert names[:4] == names[4:] == session.names
    assert len(set(names)) == 4
    assert header_source._format_for(other, streams[0]) not in names
    assert len(other.names) == 1


def test_a_role_of_another_partition_is_no_record(log, reader):
    log.become({P2: Role(3, 1)}, "test")
    assert read(reader, START)[0] == []
