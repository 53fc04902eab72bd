"""A follower's query as Spark runs it: the rows of its source, its progress, and its plan."""

import dataclasses
import threading
import time
from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException

from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.fetch_state import FollowerState, PartitionFetchState
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.server.executors import ExecutorsFailed
from lakelog.replication.server.fetcher import follower_query
from lakelog.replication.server.fetcher.follower_query import (
    FollowerQuery,
    HeaderStream,
    StreamPlan,
    batch_key,
    follower_session,
    planned,
    read_rows,
)
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.hanging import Hanging, ends, in_background
from tests.processes import wait_until
from tests.server.fetcher.test_fetch_runner import World
from tests.storage.logs import P0, P1, fill, leo

ODD = TopicIdPartition('a "name",\n\\ {}', 7)


@pytest.fixture(scope="module")
def session(spark):
    return follower_session(spark)


def batch(partition, base, last, size=10):
    return FetchedBatch(partition, base, last, 3, f"{base}.parquet", 100, size, f"before {base}", f"after {last}")


def sums(query, name):
    """The sums of its rows in the progress of each micro-batch that had some: batches, records, bytes."""
    return [tuple(found) for each in query.recentProgress if any(found := each.observedMetrics[name])]


def test_ft_05_each_call_makes_a_micro_batch_with_its_rows_which_progress_counts(session, tmp_path):
    stream, rows, first = HeaderStream(session), [], Hanging(lambda: None)

    def process(frame, number):
        rows.append([tuple(row) for row in frame.collect()])
        if number == 0:
            first()

    stream.add()
    writer = stream.frame().writeStream.option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = writer.foreachBatch(process).start()
    try:
        assert first.is_entered.wait(120)
        stream.add([batch(P0, 0, 4)], [batch(ODD, 5, 5), batch(P1, 0, 9, 20)])
        first.let_go()
        wait_until(lambda: len(rows) == 2, "the second micro-batch", 120)
        stream.add()
        wait_until(lambda: len(rows) == 3, "the third micro-batch", 120)
        wait_until(lambda: len(query.recentProgress) == 3, "its progress", 120)
        assert [len(found) for found in rows] == [0, 3, 0]
        assert (*ODD, 5, 5, 3, "5.parquet", 100, 10, "before 5", "after 5", True) in rows[1]
        assert [each.numInputRows for each in query.recentProgress] == [0, 3, 0]
        assert (sums(query, "appended"), sums(query, "behind")) == ([(1, 5, 10)], [(2, 11, 30)])
    finally:
        query.stop()


@pytest.mark.parametrize("begins", [True, False], ids=["that has begun", "that is starting"])
def test_br_04_a_query_stops_at_once_and_logs_nothing(session, root, capfd, begins):
    begun = []
    starting = FollowerQuery(
        session, "broker-2:ReplicaFetcherThread-0-1", StorageRoot.of(root), lambda *_: begun.append(1)
    )
    query = starting.start()
    if begins:
        wait_until(lambda: begun, "its first micro-batch", 120)
    assert ends(in_background(query.stop))
    assert query.exception() is None
    assert [word for word in ("Traceback", "Exception") if word in capfd.readouterr().err] == []


def test_ft_01_a_query_that_still_runs_keeps_its_checkpoint_though_another_of_its_name_is_to_start(session, root):
    """A micro-batch that hangs in a store outlives its fetcher. The next fetcher from that broker has its name."""
    first, second = (
        FollowerQuery(session, "broker-2:ReplicaFetcherThread-0-1", StorageRoot.of(root), lambda *_: None) for _ in "12"
    )
    query = first.start()
    try:
        with pytest.raises(IllegalArgumentException, match="already active"):
            second.start()
        (folder,) = Path(root).iterdir()
        assert (folder / "checkpoint" / "metadata").exists()
    finally:
        query.stop()
    Path(root, "0").touch()  # what cannot be deleted keeps nothing else
    query = second.start()
    query.stop()
    assert not folder.exists()
    assert len([path for path in Path(root).iterdir() if path.is_dir()]) == 1


def test_ft_05_a_micro_batch_has_so_many_rows_at_most_and_those_that_are_behind_come_first(root, monkeypatch):
    monkeypatch.setattr(follower_query, "MOST_ROWS", 3)
    query, added = FollowerQuery(None, "q", StorageRoot.of(root), None), []
    monkeypatch.setattr(query, "_stream", type("Stream", (), {"add": lambda _, *rows: added.append(rows)})())
    query.go_on(["a"] * 5, ["b"] * 2)
    query.go_on(["a"], ["b"] * 5)
    assert added == [(["a"], ["b"] * 2), ([], ["b"] * 3)]
    assert (query.appended, query.behind) == ([], ["b"] * 3)


def headers(session, *behind, appended=()):
    """The rows of a micro-batch."""
    lines = [
        follower_query._line(found, is_behind) for of, is_behind in ((appended, False), (behind, True)) for found in of
    ]
    frame = session.createDataFrame([(line,) for line in lines], "value string")
    return frame.selectExpr(f"from_json(value, '{follower_query.BATCH_HEADERS.types}') header").select("header.*")


def chained(partition, *ends):
    """Batches up to these last offsets, each of which continues the one before."""
    starts = (0, *(end + 1 for end in ends))
    return [
        FetchedBatch(partition, start, end, 0, f"{start}.parquet", 9, 9, f"at {start}", f"at {end + 1}")
        for start, end in zip(starts, ends, strict=False)
    ]


def test_ft_02_ft_10_spark_joins_what_is_behind_with_metadata_and_fetch_states(session):
    """P0 has its first batch, P1 is truncated first, the odd one has moved to another leader."""
    of_p0, of_p1, odd = (chained(p, 2, 4, 9) for p in (P0, P1, ODD))
    metadata = {p: PartitionRegistration("flights", *p, (1, 2), 1, 5, (1,)) for p in (P0, P1)}
    metadata[ODD] = PartitionRegistration("odd", *ODD, (1, 2), 2, 5, (1,))
    fetching = {p: PartitionFetchState(*p, 5, 3, FollowerState.FETCHING) for p in (P0, P1, ODD)}
    states = {**fetching, P1: PartitionFetchState(*P1, 5, 0, FollowerState.TRUNCATING)}
    log_ends = {P0: LogEnd(3, "at 3"), P1: LogEnd(0, "at 0"), ODD: LogEnd(0, "at 0")}
    found = planned(
        session, headers(session, *of_p0, *of_p1, *odd, appended=of_p0[:1]), metadata, states, log_ends, 2, 1
    )
    assert found == StreamPlan(frozenset(map(batch_key, of_p0[1:])), frozenset([P1, ODD]))
    assert planned(session, headers(session, *of_p0), {}, {}, {}, 2, 1).left_out == {P0}


def test_ft_05_without_an_executor_spark_makes_no_plan(session, monkeypatch):
    """A cluster of Spark that has lost all workers would let the job wait."""
    monkeypatch.setattr(follower_query, "is_local", lambda _: False)
    for job in (lambda of: planned(session, of, {}, {}, {}, 2, 1), lambda of: read_rows(session, of)):
        with pytest.raises(ExecutorsFailed, match="Spark has no executor"):
            job(headers(session, *chained(P0, 2)))


def far_behind(session, root, batches):
    """A world whose follower lacks some batches, and a fetcher of it with a query of Spark's, which a test starts. Its
    micro-batches end as soon as they have nothing to do."""
    world = World(root, **{"replica.fetch.response.max.bytes": 1})
    registrations = {p: PartitionRegistration("flights", *p, (1, 2), 1, 0, (1,)) for p in (P0, P1)}
    world.round._context = dataclasses.replace(
        world.round._context, spark=session, metadata=lambda: registrations
    )  # fmt: skip
    world.fetch()
    fill(world.leader, P0, *[2] * batches)
    world.publish()
    key, home = BrokerIdAndFetcherId(1, 0), StorageRoot.of(root)
    made = ReplicaFetcher(
        session, 2, key, world.source, home.child("checkpoints"), world.round._context.config, world.states,
        world.round, PausePoint(),
    )  # fmt: skip
    made._loop.longest = 0.2
    return world, made


def test_ft_05_a_follower_that_is_far_behind_appends_what_spark_has_planned(session, root):
    """Its progress tells how far behind it was, and then what it has appended."""
    world, fetcher = far_behind(session, root, 20)
    plans, begin = [], world.round.begin_micro_batch
    world.round.begin_micro_batch = lambda plan: plans.append(plan) or begin(plan)
    query = fetcher._follower_query.start()
    try:
        wait_until(lambda: leo(world.follower) == 40, "all records", 120)
        wait_until(lambda: sum(found[0] for found in sums(query, "appended")) == 20, "the progress", 120)
        behind = sums(query, "behind")
        sizes = [len(plan.chosen) for plan in plans if plan]
        assert sizes == [found[0] for found in behind]
        assert behind[0][:2] == (sizes[0], 2 * sizes[0])
        told = sum(found[0] for found in [*behind, *sums(query, "appended")])
        assert sum(each.numInputRows for each in query.recentProgress) == told
    finally:
        fetcher._loop.end()
        query.stop()


def test_br_04_a_stop_waits_for_no_plan_though_spark_has_no_core_free_for_it(
    session, root, tmp_path, monkeypatch, capfd
):
    """Spark cancels the jobs of a query that stops once. This plan begins its job after that."""
    _, fetcher = far_behind(session, root, 20)
    cores, release = session.sparkContext.defaultParallelism, tmp_path / "release"

    def holds(_):
        until = time.monotonic() + 120
        while not release.exists() and time.monotonic() < until:
            threading.Event().wait(0.05)

    holding = in_background(lambda: session.sparkContext.parallelize(range(cores), cores).foreach(holds))
    preparing = Hanging(follower_query._of_job)
    monkeypatch.setattr(follower_query, "_of_job", preparing)
    fetcher._query = query = fetcher._follower_query.start()
    try:
        tracker = session.sparkContext.statusTracker()
        wait_until(lambda: len(tracker.getActiveStageIds()) > 0, "the job that holds all cores", 120)
        assert preparing.is_entered.wait(120)
        stopping = in_background(fetcher.shutdown)
        wait_until(lambda: not query.isActive, "Spark's own cancellation")
        preparing.let_go()
        assert ends(stopping)
        assert not fetcher._ending.is_alive()
        assert not release.exists()
        assert [word for word in ("Traceback", "Exception") if word in capfd.readouterr().err] == []
    finally:
        release.touch()
        assert ends(holding)
