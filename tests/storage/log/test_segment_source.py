"""The stream of segments as Spark runs it: checkpoints, `availableNow`, empty micro-batches."""

from pathlib import Path

import pytest

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment_source import stream_segments
from lakelog.replication.storage.log.segment_stream import SegmentStream
from lakelog.schemas import NEW_SEGMENTS
from tests.processes import wait_until
from tests.storage.log.test_segment_stream import follow_commit
from tests.storage.logs import P0, P1, fill, lead, new_log


@pytest.fixture
def log(root):
    return new_log(root, P0, P1)


@pytest.fixture
def run(spark, root):
    """Runs a stream until it has read what there is; its micro-batches with their numbers."""

    def run(**options):
        seen = []
        stream = SegmentStream(StorageRoot.of(root), 1, **options)
        writer = stream_segments(spark, stream).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{root}/checkpoint")
        query = writer.foreachBatch(lambda frame, number: seen.append((number, frame.collect()))).start()
        assert query.awaitTermination(120), "availableNow must end"
        return seen

    return run


def versions(rows):
    return [row.version for row in rows]


def test_ft_05_segments_arrive_in_order_in_micro_batches_and_again_after_a_restart(root, log, run):
    """Restarted without the last commit of its checkpoint, Spark asks for the same micro-batch once more."""
    run()
    fill(log, P0, 2)
    follow_commit(log)
    fill(log, P1, 3)
    fill(log, P0, 1)
    seen = [(number, rows) for number, rows in run(max_bytes=1) if rows]
    assert [versions(rows) for _, rows in seen] == [[2], [4], [5]]
    assert seen[0][1][0].asDict().keys() == set(NEW_SEGMENTS.names)
    last, rows = seen[-1]
    commits = Path(root, "checkpoint", "commits")
    for name in (f"{last}", f".{last}.crc"):
        commits.joinpath(name).unlink(missing_ok=True)
    assert [(number, versions(again)) for number, again in run() if again] == [(last, versions(rows))]
    assert [again for _, again in run() if again] == []


def test_ft_05_each_micro_batch_but_the_first_has_segments(spark, root, log):
    """The first one tells a follower that its stream has begun. Later ones cost as much, and would bring nothing."""
    seen = []
    writer = stream_segments(spark, SegmentStream(StorageRoot.of(root), 1)).writeStream
    writer = writer.option("checkpointLocation", f"{root}/checkpoint")
    query = writer.foreachBatch(lambda frame, _: seen.append(frame.count())).start()
    try:
        wait_until(lambda: seen, "the first micro-batch", 120)
        follow_commit(log)
        lead(log, P0, epoch=1)
        fill(log, P0, 1, epoch=1)
        wait_until(lambda: len(seen) == 2, "the micro-batch of the record", 120)
        fill(log, P0, 1, epoch=1)
        wait_until(lambda: len(seen) == 3, "the micro-batch of the next one", 120)
        assert seen == [0, 1, 1]
    finally:
        query.stop()


def test_credentials_reach_the_reader_and_no_plan(spark, s3_options, root):
    """Spark shows plans in its UI, in event logs and in `explain`. The reader runs in a process of its own."""
    options = {**s3_options, "AWS_SESSION_TOKEN": "hunter2hunter2"}
    leader = StorageRoot.of("s3://bucket/credentials", options)
    log, seen = new_log(leader.child("log"), P0), []
    frame = stream_segments(spark, SegmentStream(leader, 1))
    writer = frame.writeStream.option("checkpointLocation", f"{root}/checkpoint")
    query = writer.foreachBatch(lambda batch, _: seen.extend(batch.collect())).start()
    try:
        wait_until(lambda: query.lastProgress is not None, "the first micro-batch", 120)
        fill(log, P0, 2)
        wait_until(lambda: seen, "the segment", 120)
        shown = (frame._jdf.queryExecution().toString(), query._jsq.explainInternal(True), query.lastProgress.json)
    finally:
        query.stop()
    assert [row.version for row in seen] == [2]
    assert "s3://bucket/credentials" in shown[0]
    assert "hunter2hunter2" not in "".join(shown)
