"""The headers that a micro-batch brings, joined with the log ends of the follower."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_steps import FetchHeaders
from lakelog.replication.server.executors import ExecutorsFailed
from lakelog.replication.server.fetcher import header_fetch
from lakelog.replication.server.fetcher.header_fetch import HeaderFetch, fetched_batches
from lakelog.schemas import RECORD_BATCHES

P0, P1, P2 = (TopicIdPartition("id", number) for number in range(3))
ENDS = {P0: LogEnd(10, "@10")}
LOCAL, ON_A_CLUSTER = (SimpleNamespace(sparkContext=SimpleNamespace(master=name)) for name in ("local[2]", "yarn"))
NOBODY_READS = None  # the leader's log: no partition lags


def headers(*rows):
    """Header rows, as Spark hands them over."""
    return pa.Table.from_pylist(
        [dict(zip(RECORD_BATCHES.names, row, strict=True)) for row in rows], RECORD_BATCHES.arrow
    )


def header(base, last, partition=P0, segment="a"):
    return (7, segment, 100, "t", *partition, 3, base, last, 40, f"@{base}", f"@{last + 1}", None)


def gap(reason):
    return (7, *[None] * 11, reason)


def batch(base, last, partition=P0, segment="a"):
    return FetchedBatch(partition, base, last, 3, segment, 100, 40, f"@{base}", f"@{last + 1}")


CASES = {
    "FT-10 at the LEO": (10, 12, True),
    "FT-10 above the LEO: append_plan finds the gap": (20, 29, True),
    "FT-04 below the LEO": (0, 9, False),
    "FT-04 its last record is new": (5, 10, True),
}


@pytest.mark.parametrize(("base", "last", "is_fetched"), CASES.values(), ids=CASES)
def test_ft_04_ft_10_what_reaches_the_fetch_offset_is_fetched(base, last, is_fetched):
    found = fetched_batches(headers(header(base, last)), ENDS)
    assert found == ([batch(base, last)] if is_fetched else [])


def test_ft_07_batches_of_partitions_that_are_not_fetched_are_left_out():
    rows = headers(header(10, 12, P1), header(10, 12, TopicIdPartition("made again", 0)), header(10, 12))
    assert fetched_batches(rows, ENDS) == [batch(10, 12)]


def test_each_partition_is_fetched_from_its_own_offset():
    rows = headers(header(5, 7, P1), header(5, 7), header(0, 0, P2, "b"))
    ends = {**ENDS, P1: LogEnd(5, "@5"), P2: LogEnd(0, "@0")}
    assert fetched_batches(rows, ends) == [batch(5, 7, P1), batch(0, 0, P2, "b")]


@pytest.mark.parametrize("ends", [ENDS, {P1: LogEnd(0, "@0")}], ids=["fetched", "of another partition"])
def test_a_gap_in_the_stream_stays_a_gap_and_is_told_once(caplog, ends):
    rows = headers(gap("torn"), gap("cleaned up"), header(10, 12), gap("torn"))
    frame = SimpleNamespace(sparkSession=LOCAL, toArrow=lambda: rows)
    found = HeaderFetch("broker-2", NOBODY_READS).fetch(frame, FetchHeaders(ends, frozenset(), {}))
    assert found.stream_has_gap
    assert [b.topic_id_partition for b in found.batches] == [p for p in ends if p == P0]
    assert caplog.messages == ["broker-2: cleaned up; torn: the leader's snapshot is read instead"]


def test_ft_03_without_a_partition_to_fetch_no_frame_is_read():
    """Reading it would be a job of Spark."""
    found = HeaderFetch("broker-2", NOBODY_READS).fetch(SimpleNamespace(), FetchHeaders({}, frozenset(), {}))
    assert (list(found.batches), found.stream_has_gap) == ([], False)


def test_without_an_executor_headers_are_a_gap_which_is_told_once_until_there_is_one(monkeypatch, caplog):
    """A job without executors never ends, and the follower would leave the ISR meanwhile."""
    asked = []

    def may_fail(spark, run):
        asked.append(spark)
        if fails[len(asked) - 1]:
            raise ExecutorsFailed("Spark has no executor")
        return run()

    fails = [True, True, False, True]
    monkeypatch.setattr(header_fetch, "while_there_are_executors", may_fail)
    frame = SimpleNamespace(sparkSession=ON_A_CLUSTER, toArrow=lambda: headers(header(10, 12)))
    fetch = HeaderFetch("broker-2", NOBODY_READS)
    found = [fetch.fetch(frame, FetchHeaders(ENDS, frozenset(), {})) for _ in fails]
    assert [(each.stream_has_gap, list(each.batches)) for each in found] == [
        (True, []), (True, []), (False, [batch(10, 12)]), (True, []),
    ]  # fmt: skip
    assert caplog.messages == ["broker-2: Spark has no executor: the leader's snapshot is read instead"] * 2
    assert asked == [ON_A_CLUSTER] * 4
