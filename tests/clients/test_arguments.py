"""Values at the public calls of clients: each call works, or raises one error of Lakelog that names the argument."""

import datetime as dt
import inspect
import math

import pytest

from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.arguments import milliseconds, seconds, topic_names
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.python_records import single_row
from lakelog.replication.errors import (
    InvalidGroupIdException,
    InvalidRecordException,
    InvalidRequestException,
    InvalidTopicException,
    LakelogException,
    OffsetOutOfRangeException,
)
from tests.clients.world import World
from tests.storage.logs import P0, TOPIC, fill


@pytest.fixture
def world(root):
    return World(root)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return World(str(tmp_path_factory.mktemp("shared")))


@pytest.mark.parametrize(
    ("given", "expected"), [(None, None), (-1, None), (1e300, None), (math.inf, None), (0, 0), (2.5, 2.5)]
)
def test_a_negative_time_to_wait_is_for_ever(given, expected):
    assert seconds(given, "timeout") == expected


@pytest.mark.parametrize("given", [True, "1", math.nan, b"1", [], dt.timedelta(1)])
def test_what_is_no_time_is_named(given):
    for check in (seconds, milliseconds):
        with pytest.raises(InvalidRequestException, match=r"timeout is .*: give a number of"):
            check(given, "timeout")


@pytest.mark.parametrize("topics", ["a", b"a", [], None, 5, {}])
def test_topics_are_a_list_of_names(topics):
    with pytest.raises(InvalidRequestException, match="topics is "):
        topic_names(topics)


@pytest.mark.parametrize("name", ["^a.*", "a b", "", "..", None, 5, "\ud800"])
def test_a_name_that_no_topic_can_have_is_refused_at_once(world, name):
    with Consumer(world.uri, "group") as consumer, pytest.raises(InvalidTopicException):
        consumer.subscribe([name])


@pytest.mark.parametrize("group", ["x" * 201, "é" * 70, "\ud800", 5])
def test_a_group_that_could_not_be_described_commits_nothing(world, group):
    with pytest.raises(InvalidGroupIdException, match="group is "):
        Consumer(world.uri, group).commit({TOPIC: {0: 0}})
    assert world.cluster.groups.read() == []


@pytest.mark.parametrize("offset", [5.5, True, "5", None, -2, 2**70])
def test_records_are_deleted_before_a_whole_number_only(world, offset):
    fill(world.logs[1], P0, 3)
    world.say(3)
    (outcome,) = AdminClient(world.uri).delete_records({(TOPIC, 0): offset}).values()
    assert isinstance(outcome, OffsetOutOfRangeException)


EDGES = [
    dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))),
    dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))),
]


@pytest.mark.parametrize("edge", EDGES)
def test_a_time_at_the_edge_fails_its_own_record_only(edge):
    with pytest.raises(InvalidRecordException, match=r"timestamp is .*no time of the years 1 to 9999"):
        single_row("t", "v", None, None, edge, None)


# fmt: off
VALUES = [
    None, True, False, 0, -1, 1, 5.5, -0.0, math.nan, math.inf, -math.inf, 2**31, 2**63, -(2**63) - 1, 10**400, "", " ",
    "a", "-1", "0", "\0", "a\nb", "../x", "^a.*", "x" * 300, "\N{PILE OF POO}", "\ud800", b"", b"\xff", bytearray(b"a"),
    [], [None], [[]], (), (1,), {}, {None: None}, {"a": 1}, {0: None}, set(), object(), dt.datetime(2026, 1, 1),
    dt.datetime.min, dt.datetime.max, *EDGES, dt.date(2026, 1, 1), dt.timedelta(1), 1j, int, lambda: None,
]
# fmt: on
GOOD = {
    "topic": TOPIC,
    "records": [{"value": "v", "partition": 0}],
    "partition": 0,
    "topics": [TOPIC],
    "timeout": 0,
    "offsets": {},
    "offset": 0,
    "epochs": [0],
    "partitions": [],
    "timeout_ms": 100,
    "before": {},
    "max_wait_ms": 0,
}  # fmt: skip
CASES = [
    (kind, call, parameter)
    for kind in (Producer, Consumer, AdminClient)
    for call, method in inspect.getmembers(kind, inspect.isfunction)
    if not call.startswith("_") and (kind is not AdminClient or call in ("delete_records", "describe_topic"))
    for parameter in inspect.signature(method).parameters
    if parameter not in ("self", "timeout") and not parameter.startswith("on_")
]


@pytest.mark.parametrize(("kind", "call", "parameter"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_each_value_at_each_public_call_works_or_is_an_error_of_ours(shared, kind, call, parameter):
    settings = {"acks": 0} if kind is Producer else {"group": "g"} if kind is Consumer else {}
    client, method = kind(shared.uri, **settings), getattr(kind, call)
    raw = {}
    needed = {p.name for p in inspect.signature(method).parameters.values() if p.default is p.empty} - {"self"}
    if call in ("seek", "position", "pause", "resume"):
        client.subscribe([TOPIC])
        client.poll(0)
    for value in VALUES:
        given = {name: GOOD[name] for name in needed if name in GOOD} | {parameter: value}
        if call in ("send", "send_async"):
            given.setdefault("timeout_ms", 1)
        try:
            method(client, **given)
        except LakelogException:
            pass
        except Exception as error:
            raw[f"{value!r:.40}"] = repr(error)[:200]
    getattr(client, "close", lambda: None)()
    assert raw == {}
