"""`Consumer.to_arrow` and `to_batches`: a topic's committed records without Spark."""

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from lakelog.replication.clients import committed_records
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.config import Config
from lakelog.replication.errors import (
    CorruptRecordException,
    InvalidPartitionsException,
    InvalidRequestException,
    LeaderNotAvailableException,
    OffsetNotAvailableException,
    OffsetOutOfRangeException,
    UnknownTopicIdException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.storage.log.log_start import raise_log_starts
from lakelog.schemas import LOG
from tests.clients.world import World, partly_committed_world
from tests.storage.logs import P0, P1, TOPIC, fill, lead

ALL = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
QUICK = Config(request_timeout_ms=1, lakelog_poll_interval_ms=1)


@pytest.fixture
def world(root):
    return partly_committed_world(root)


def places(records):
    return sorted(zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ALL),
        ({"starting": "latest"}, []),
        ({"ending": "earliest"}, []),
        ({"starting": {0: 2}}, [(0, 2), (0, 3), (1, 0), (1, 1)]),
        ({"ending": {0: 2, 1: "earliest"}}, [(0, 0), (0, 1)]),
        ({"starting": {0: 1, 1: 2}, "ending": {0: 3}}, [(0, 1), (0, 2)]),
        ({"starting": {0: "latest", 1: "earliest"}, "ending": "latest"}, [(1, 0), (1, 1)]),
        ({"starting": {0: 2}, "ending": {0: 2, 1: 0}}, []),
    ],
)
@pytest.mark.parametrize("max_bytes", [0, 52_428_800])
def test_fe_01_a_topic_as_arrow_has_what_is_committed_within_the_offsets_once(world, given, expected, max_bytes):
    consumer = world.consumer()
    table = consumer.to_arrow(TOPIC, **given)
    assert table.schema == LOG.arrow
    assert places(table) == expected
    batches = consumer.to_batches(TOPIC, **given, max_bytes=max_bytes)
    assert batches.schema == LOG.arrow
    assert places(pa.Table.from_batches(batches, LOG.arrow)) == expected


def test_the_records_of_a_partition_come_in_their_order_although_partitions_take_turns(world):
    found = pa.Table.from_batches(world.consumer().to_batches(TOPIC, max_bytes=0))
    in_order = zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)
    assert sorted(in_order, key=lambda place: place[0]) == ALL


def test_partitions_that_no_single_fetch_takes_are_read_too(world, monkeypatch):
    monkeypatch.setattr(committed_records, "_PARTITIONS_AT_A_TIME", 1)
    assert places(world.consumer().to_arrow(TOPIC)) == ALL


def test_records_that_are_committed_after_the_call_are_not_returned(world):
    consumer = world.consumer()
    batches = consumer.to_batches(TOPIC, max_bytes=0)
    world.say(5)
    fill(world.logs[1], P1, 4)
    world.say(6, P1)
    assert places(pa.Table.from_batches(batches, LOG.arrow)) == ALL
    assert len(places(consumer.to_arrow(TOPIC))) == 11


def test_a_topic_without_records_is_a_table_without_rows(root):
    made = World(root)
    made.say(0)
    made.say(0, P1)
    assert made.consumer().to_arrow(TOPIC) == LOG.arrow.empty_table()
    assert list(made.consumer().to_batches(TOPIC)) == []


def test_duckdb_polars_and_pandas_read_the_batches(world):
    consumer = world.consumer()
    relation = duckdb.from_arrow(consumer.to_batches(TOPIC, max_bytes=0))
    assert relation.aggregate("partition, count(*)").order("ALL").fetchall() == [(0, 4), (1, 2)]
    assert pl.from_arrow(consumer.to_batches(TOPIC)).height == 6
    assert len(consumer.to_batches(TOPIC).read_pandas()) == 6


def test_duckdb_tells_the_error_of_a_partition(world):
    relation = duckdb.from_arrow(world.consumer().to_batches(TOPIC))
    (gone, *_) = (batch.segment for batch in world.logs[1].refresh().partition(P0).batches)
    world.logs[1].root.delete(gone)
    with pytest.raises(duckdb.Error, match=gone):
        relation.aggregate("count(value)").fetchall()


@pytest.mark.parametrize(
    ("topic", "given", "error", "text"),
    [
        (TOPIC, {"starting": "soon"}, InvalidRequestException, "starting is 'soon': give earliest, latest, or a dict"),
        (TOPIC, {"ending": {0: "1"}}, InvalidRequestException, "ending is {0: '1'}: give earliest, latest, or a dict"),
        (TOPIC, {"starting": {7: 0}}, InvalidPartitionsException, "topic flights has no partition 7, it has 0 to 1"),
        (TOPIC, {"starting": {0: 5}}, OffsetOutOfRangeException, "offset 5 is out of range, committed: 0 to 4"),
        (TOPIC, {"ending": {1: -1}}, OffsetOutOfRangeException, "offset -1 is out of range, committed: 0 to 2"),
        (
            TOPIC, {"starting": {0: 3}, "ending": {0: 1}}, OffsetOutOfRangeException,
            "flights-0: starting is offset 3, after ending, which is 1",
        ),
        ("nobody", {}, UnknownTopicOrPartitionException, "no topic nobody; there are: flights"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["to_arrow", "to_batches"])
def test_offsets_that_cannot_be_read_are_refused_at_the_call(world, method, topic, given, error, text):
    with pytest.raises(error) as found:
        getattr(world.consumer(), method)(topic, **given)
    assert text in str(found.value)


def test_batches_have_a_whole_number_of_bytes(world):
    with pytest.raises(InvalidRequestException, match="max_bytes is '1': give a whole number from 0"):
        world.consumer().to_batches(TOPIC, max_bytes="1")


def test_a_new_leader_that_does_not_know_its_hw_is_waited_for(world, while_waiting):
    world.change(leader_epoch=1)
    lead(world.logs[1], P0, epoch=1)
    world.say(3)
    left = while_waiting(lambda: None, lambda: world.say(5))
    assert places(world.consumer().to_arrow(TOPIC))[:5] == [(0, n) for n in range(5)]
    assert list(left) == []
    world.say(3)
    with pytest.raises(OffsetNotAvailableException):
        Consumer(world.uri, config=QUICK).to_arrow(TOPIC)


def test_a_partition_that_loses_its_leader_during_the_read_is_an_error_after_the_time_limit(world):
    batches = Consumer(world.uri, config=QUICK).to_batches(TOPIC, max_bytes=0)
    world.change(leader=-1, leader_epoch=1)
    with pytest.raises(LeaderNotAvailableException, match="flights-0: no leader"):
        list(batches)


def test_a_topic_that_is_made_again_during_the_read_is_an_error(world):
    batches = world.consumer().to_batches(TOPIC)
    world.make_again(6, 6)
    with pytest.raises(UnknownTopicIdException):
        list(batches)


def test_records_that_retention_deletes_during_the_read_are_an_error_that_names_the_log_start(world):
    batches = world.consumer().to_batches(TOPIC)
    raise_log_starts(world.logs[1], {P0: lambda _: 3}, "test", "test")
    world.say(4)
    with pytest.raises(OffsetOutOfRangeException, match="flights-0"):
        list(batches)


def test_a_missing_file_is_an_error_that_names_it(world):
    (gone, *_) = (batch.segment for batch in world.logs[1].refresh().partition(P0).batches)
    world.logs[1].root.delete(gone)
    with pytest.raises(CorruptRecordException, match=gone):
        world.consumer().to_arrow(TOPIC)
