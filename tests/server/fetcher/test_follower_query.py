"""The source of a follower's query as Spark runs it."""

import pytest

from lakelog.replication.server.fetcher.follower_query import FollowerQuery, MicroBatchStarts
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.hanging import Hanging, ends, in_background
from tests.processes import wait_until


def test_ft_05_each_row_starts_a_micro_batch_and_those_that_wait_start_one(spark, tmp_path):
    starts, rows, first = MicroBatchStarts(spark), [], Hanging(lambda: None)

    def process(batch, number):
        rows.append(batch.count())
        if number == 0:
            first()

    starts.add()
    writer = starts.frame().writeStream.option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = writer.foreachBatch(process).start()
    try:
        assert first.is_entered.wait(120)
        starts.add()
        starts.add()
        first.let_go()
        wait_until(lambda: len(rows) == 2, "the second micro-batch", 120)
        starts.add()
        wait_until(lambda: len(rows) == 3, "the third micro-batch", 120)
        assert rows == [1, 2, 1]
    finally:
        query.stop()


@pytest.mark.parametrize("begins", [True, False], ids=["that has begun", "that is starting"])
def test_br_04_a_query_is_stopped_at_once_and_without_a_trace(spark, root, capfd, begins):
    begun = []
    starting = FollowerQuery(
        spark, "broker-2:ReplicaFetcherThread-0-1", StorageRoot.of(root), lambda *_: begun.append(1)
    )
    query = starting.start()
    if begins:
        wait_until(lambda: begun, "its first micro-batch", 120)
    assert ends(in_background(query.stop))
    assert query.exception() is None
    assert [word for word in ("Traceback", "Exception") if word in capfd.readouterr().err] == []
