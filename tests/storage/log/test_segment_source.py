"""The stream that tells of new segments as Spark runs it."""

import pytest

from lakelog.replication.storage.log.bell import STOPS, Bell
from lakelog.replication.storage.log.segment_source import stream_segments
from lakelog.replication.storage.log.segment_stream import SegmentStream
from lakelog.schemas import NEW_SEGMENTS
from tests.hanging import ends, in_background
from tests.processes import wait_until


@pytest.fixture
def bell(tmp_path):
    made = Bell.make(str(tmp_path / "bell"))
    yield made
    made.close()


def test_ft_05_the_first_micro_batch_is_empty_and_each_other_one_has_news(spark, bell, tmp_path):
    """The first one tells a follower that its query has begun. Others without news would cost as much."""
    seen = []
    frame = stream_segments(spark, SegmentStream("fetcher", bell.path, 50))
    assert tuple(frame.columns) == NEW_SEGMENTS.names
    writer = frame.writeStream.option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = writer.foreachBatch(lambda batch, _: seen.append([row.version for row in batch.collect()])).start()
    try:
        wait_until(lambda: seen, "the first micro-batch", 120)
        for number, version in enumerate((5, 6, 6), 2):
            bell.ring(version)
            wait_until(lambda number=number: len(seen) == number, "the micro-batch of the news", 120)
        assert seen == [[], [5], [6], [6]]
    finally:
        query.stop()


def test_br_04_a_query_whose_source_waits_for_long_is_stopped_at_once(spark, bell, tmp_path):
    frame, begun = stream_segments(spark, SegmentStream("fetcher", bell.path, 300_000)), []
    writer = frame.writeStream.option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = writer.foreachBatch(lambda _, number: begun.append(number)).start()
    wait_until(lambda: begun, "the first micro-batch", 120)
    bell.ring(STOPS)
    assert ends(in_background(query.stop))
    assert begun == [0]
