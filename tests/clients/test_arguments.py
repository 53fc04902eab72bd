"""Arguments of the clients' public calls. `tests/test_public_calls.py` has a hundred values for each."""

import datetime as dt
import math

import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.arguments import milliseconds, seconds, topic_names
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.records import single_row
from lakelog.replication.errors import (
    InvalidGroupIdException,
    InvalidRecordException,
    InvalidRequestException,
    InvalidTopicException,
    OffsetOutOfRangeException,
)
from tests.clients.world import World
from tests.storage.logs import P0, TOPIC, fill


@pytest.fixture
def world(root):
    return World(root)


@pytest.mark.parametrize(
    ("given", "expected"), [(None, None), (-1, None), (1e300, None), (math.inf, None), (0, 0), (2.5, 2.5)]
)
def test_a_negative_timeout_waits_for_ever(given, expected):
    assert seconds(given, "timeout") == expected


@pytest.mark.parametrize("given", [True, "1", math.nan, b"1", [], dt.timedelta(1)])
def test_an_argument_that_is_no_time_is_refused_by_name(given):
    for check in (seconds, milliseconds):
        with pytest.raises(InvalidRequestException, match=r"timeout is .*: give a number of"):
            check(given, "timeout")


@pytest.mark.parametrize("topics", ["a", b"a", [], None, 5, {}])
def test_subscribe_refuses_topics_that_are_no_list_of_names(topics):
    with pytest.raises(InvalidRequestException, match="topics is "):
        topic_names(topics)


@pytest.mark.parametrize("name", ["^a.*", "a b", "", "..", None, 5, "\ud800"])
def test_subscribe_refuses_a_name_that_no_topic_can_have(world, name):
    with Consumer(world.uri, "group") as consumer, pytest.raises(InvalidTopicException):
        consumer.subscribe([name])


@pytest.mark.parametrize("group", ["x" * 201, "é" * 70, "\ud800", 5])
def test_a_group_with_an_invalid_name_cannot_commit(world, group):
    with pytest.raises(InvalidGroupIdException, match="group is "):
        Consumer(world.uri, group).commit({TOPIC: {0: 0}})
    assert world.cluster.groups.read() == []


@pytest.mark.parametrize("offset", [5.5, True, "5", None, -2, 2**70])
def test_delete_records_refuses_an_offset_that_is_no_whole_number(world, offset):
    fill(world.logs[1], P0, 3)
    world.say(3)
    (outcome,) = AdminClient(world.uri).delete_records({(TOPIC, 0): offset}).values()
    assert isinstance(outcome, OffsetOutOfRangeException)


EDGES = [
    dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))),
    dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))),
]


@pytest.mark.parametrize("edge", EDGES)
def test_a_timestamp_at_the_edge_of_the_years_fails_only_its_own_record(edge):
    with pytest.raises(InvalidRecordException, match=r"timestamp is .*no time of the years 1 to 9999"):
        single_row("t", "v", None, None, edge, None)
