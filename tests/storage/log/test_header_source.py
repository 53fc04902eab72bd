"""The header stream as Spark runs it: checkpoints, `availableNow`, empty micro-batches."""

from pathlib import Path

import pytest

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.header_source import read_headers
from lakelog.replication.storage.log.header_stream import HeaderStream
from lakelog.schemas import RECORD_BATCHES
from tests.processes import wait_until
from tests.storage.log.test_header_stream import follow_commit
from tests.storage.logs import P0, P1, fill, lead, new_log


@pytest.fixture
def log(root):
    return new_log(root, P0, P1)


@pytest.fixture
def run(spark, root):
    """Runs a header stream until it has read what there is; its micro-batches with their numbers."""

    def run(**options):
        seen = []
        stream = HeaderStream(StorageRoot.of(root), 1, **options)
        writer = read_headers(spark, stream).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{root}/checkpoint")
        query = writer.foreachBatch(lambda frame, number: seen.append((number, frame.collect()))).start()
        assert query.awaitTermination(120), "availableNow must end"
        return seen

    return run


def offsets(rows):
    return [(row.version, row.partition, row.base_offset) for row in rows]


def test_ft_05_headers_arrive_in_order_in_micro_batches_and_again_after_a_restart(root, log, run):
    """Restarted without the last commit of its checkpoint, Spark asks for the same micro-batch once more."""
    run()
    fill(log, P0, 2)
    follow_commit(log)
    fill(log, P1, 3)
    fill(log, P0, 1)
    seen = [(number, rows) for number, rows in run(max_bytes=1) if rows]
    assert [offsets(rows) for _, rows in seen] == [[(2, 0, 0)], [(4, 1, 0)], [(5, 0, 2)]]
    assert seen[0][1][0].asDict().keys() == set(RECORD_BATCHES.names)
    last, rows = seen[-1]
    commits = Path(root, "checkpoint", "commits")
    for name in (f"{last}", f".{last}.crc"):
        commits.joinpath(name).unlink(missing_ok=True)
    assert [(number, offsets(again)) for number, again in run() if again] == [(last, offsets(rows))]
    assert [again for _, again in run() if again] == []


def test_fm_07_a_micro_batch_may_be_read_again_with_another_plan(spark, root, log):
    """A round that begins anew joins the headers of its micro-batch with other fetch states."""
    fill(log, P0, 2)
    seen = []

    def read_again(frame, _):
        rows = [frame.where(f"partition = {p.partition}").select("base_offset").collect() for p in (P1, P0, P0)]
        seen.append([[row.base_offset for row in found] for found in rows])

    stream = read_headers(spark, HeaderStream(StorageRoot.of(root), 1))
    query = stream.writeStream.foreachBatch(read_again).option("checkpointLocation", f"{root}/checkpoint").start()
    wait_until(lambda: seen, "the first micro-batch, which has none")
    fill(log, P0, 3)
    found = wait_until(lambda: [rows for rows in seen if any(rows)], "the micro-batch with the new header")
    query.stop()
    assert found == [[[], [2], [2]]]


def test_a_gap_reaches_the_follower(log, run):
    run()
    fill(log, P0, 1)
    (name,) = log.current().segments
    log.root.delete(name)
    ((_, rows),) = [batch for batch in run() if batch[1]]
    assert [(row.version, row.segment, row.base_offset) for row in rows] == [(2, None, None)]
    assert name in rows[0].gap


def test_ft_05_each_micro_batch_but_the_first_has_headers(spark, root, log):
    """The first one tells a follower that its stream has begun. Later ones cost as much, and would bring nothing."""
    seen = []
    writer = read_headers(spark, HeaderStream(StorageRoot.of(root), 1)).writeStream
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
    frame = read_headers(spark, HeaderStream(leader, 1))
    writer = frame.writeStream.option("checkpointLocation", f"{root}/checkpoint")
    query = writer.foreachBatch(lambda batch, _: seen.extend(batch.collect())).start()
    try:
        wait_until(lambda: query.lastProgress is not None, "the first micro-batch", 120)
        fill(log, P0, 2)
        wait_until(lambda: seen, "the header of the batch", 120)
        shown = (frame._jdf.queryExecution().toString(), query._jsq.explainInternal(True), query.lastProgress.json)
    finally:
        query.stop()
    assert [row.base_offset for row in seen] == [0]
    assert "s3://bucket/credentials" in shown[0]
    assert "hunter2hunter2" not in "".join(shown)
