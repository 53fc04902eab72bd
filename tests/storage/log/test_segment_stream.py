"""The reader of a follower's stream, and the bell that wakes it, without Spark."""

import os

import pytest
from pyspark import cloudpickle

from lakelog.replication.storage.log import bell as bell_module
from lakelog.replication.storage.log import segment_source
from lakelog.replication.storage.log.bell import STOPS, Bell
from lakelog.replication.storage.log.segment_source import SegmentStreamSource
from lakelog.replication.storage.log.segment_stream import SegmentStream, SegmentStreamReader
from tests.hanging import ends, in_background

NONE = {"news": 0}
LONG_MS = 60_000


@pytest.fixture
def bell(tmp_path):
    made = Bell.make(str(tmp_path / "bell"))
    yield made
    made.close()


@pytest.fixture
def reader(bell):
    made = SegmentStreamReader(SegmentStream("fetcher", bell.path, 0))
    assert read(made, NONE) == ([], NONE), "a query begins with its first answer"
    return made


def read(reader, start):
    rows, end = reader.read(start)
    return list(rows), end


def test_ft_05_each_time_that_the_bell_has_rung_is_an_offset(bell, reader):
    offset = NONE
    for version, news in ((3, 1), (4, 2), (4, 3), (1, 4)):
        bell.ring(version)
        rows, offset = read(reader, offset)
        assert (rows, offset) == ([(version,)], {"news": news}), "or Spark would start no micro-batch"
        assert read(reader, offset) == ([], offset)


def test_ft_05_what_rings_while_nobody_waits_is_one_micro_batch_and_none_is_lost(bell, reader):
    for version in range(5):
        bell.ring(version)
    assert read(reader, NONE) == ([(4,)], {"news": 1})
    assert read(reader, {"news": 1}) == ([], {"news": 1})


def test_ft_05_what_rang_before_the_reader_was_there_is_not_lost(bell):
    bell.ring(7)
    reader = SegmentStreamReader(SegmentStream("fetcher", bell.path, 0))
    assert [read(reader, NONE) for _ in range(2)] == [([], NONE), ([(7,)], {"news": 1})]


def test_an_idle_stream_waits_for_news_and_answers_at_once_when_there_are_some(bell):
    """Each question of Spark's costs more than many looks."""
    reader, found = SegmentStreamReader(SegmentStream("fetcher", bell.path, LONG_MS)), []
    assert read(reader, NONE) == ([], NONE)
    waiting = in_background(lambda: found.append(read(reader, NONE)))
    waiting.join(0.1)
    assert waiting.is_alive()
    bell.ring(5)
    assert ends(waiting)
    assert found == [([(5,)], {"news": 1})]


@pytest.mark.parametrize(
    ("wait_max_ms", "rings", "waits"),
    [
        (500, [None] * 7, [0.5, 1, 2, 4, 8, 10, 10]),
        (500, [None, None, 3, None, None], [0.5, 1, 2, 0.5, 1]),
        (20_000, [None, None, 3, None], [20] * 4),
        (500, [None, None, STOPS, None, None], [0.5, 1, 2, 0, 0]),
    ],
    ids=["longer each time", "news", "a long wait stays", "the query is stopped"],
)
def test_ft_05_a_stream_waits_longer_while_there_are_no_news(bell, monkeypatch, wait_max_ms, rings, waits):
    reader, rest, waited, news = SegmentStreamReader(SegmentStream("f", bell.path, wait_max_ms)), iter(rings), [], []
    monkeypatch.setattr(reader, "_wait", lambda seconds: waited.append(seconds) or next(rest))
    assert read(reader, NONE) == ([], NONE)
    for _ in rings:
        news += read(reader, NONE)[0]
    assert (waited, news) == (waits, [(3,)] * (3 in rings))


@pytest.mark.parametrize("rings", [(STOPS, 9), (9, STOPS), (STOPS,)], ids=["before", "after", "alone"])
def test_br_04_a_query_that_stops_is_told_so_whatever_else_rings(bell, reader, rings):
    for version in rings:
        bell.ring(version)
    assert (read(reader, NONE), reader._seconds) == (([], NONE), 0)


def test_ft_05_a_leader_whose_log_has_gone_stops_no_stream(bell, reader):
    """Its version is that of no log, -1."""
    bell.ring(-1)
    assert read(reader, NONE) == ([(-1,)], {"news": 1})


def test_a_bell_that_nobody_hears_stops_no_broker(bell, reader):
    """The pipe holds some thousand versions."""
    for version in range(20_000):
        bell.ring(version)
    rows, _ = read(reader, NONE)
    assert len(rows) == 1
    for version in (20_000, 20_001):
        bell.ring(version)
    while news := bell.wait(0):
        last = news
    assert last == 20_001


def test_a_bell_is_for_its_own_user_alone(bell):
    assert os.stat(bell.path).st_mode & 0o777 == 0o600


def test_a_stream_without_a_bell_waits_all_the_same(monkeypatch):
    monkeypatch.delattr(bell_module.os, "open")
    reader = SegmentStreamReader(SegmentStream(wait_max_ms=1))
    assert [read(reader, NONE) for _ in range(3)] == [([], NONE)] * 3


def test_spark_can_send_a_reader_to_its_workers(bell):
    reader = cloudpickle.loads(cloudpickle.dumps(SegmentStreamReader(SegmentStream("f", bell.path, 0))))
    bell.ring(2)
    assert [read(reader, NONE)[0] for _ in range(2)] == [[], [(2,)]]


def test_after_a_restart_spark_reads_no_news_again(reader):
    assert (list(reader.readBetweenOffsets({"news": 1}, {"news": 3})), reader.initialOffset()) == ([], NONE)


def test_the_options_of_a_stream_make_the_same_stream():
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

    stream = SegmentStream("broker-2:ReplicaFetcherThread-0-3", "/a/bell", 500)
    assert segment_source.stream_segments(Session(), stream) == stream


def test_a_format_is_registered_once_and_shared_by_no_two_queries():
    """Spark warns of a second one. Queries that share one fail if one of them starts while the other makes its tasks:
    Spark changes the environment in the registered function then."""

    class Session:
        def __init__(self):
            self.names, self.dataSource = [], self

        def register(self, source):
            self.names.append(cloudpickle.loads(cloudpickle.dumps(source)).name())

    session, other = Session(), Session()
    readers = ["fetcher 0", "fetcher 1"]
    names = [segment_source._format_for(session, reader) for reader in [*readers, *readers]]
    assert names[:2] == names[2:] == session.names
    assert len(set(names)) == 2
    assert segment_source._format_for(other, readers[0]) not in names
    assert len(other.names) == 1
