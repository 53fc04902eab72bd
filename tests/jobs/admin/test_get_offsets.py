"""`lakelog get-offsets` on real tables without running brokers: the tests write the replica rows."""

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakelog.jobs import get_offsets
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from tests.clients.world import World
from tests.storage.logs import COLUMNS, NOON, P0, P1, TOPIC, follow, lead, request, send, start_at, truncate

Run = Any  # what a verb has answered: (status, stdout, stderr)
NOON_MS = int(NOON.timestamp() * 1000)


def at(*milliseconds: int) -> pa.Table:
    """Records as late as that after noon."""
    times = [NOON + dt.timedelta(milliseconds=ms) for ms in milliseconds]
    return pa.Table.from_pylist([{"key": None, "value": b"v", "timestamp": t, "headers": None} for t in times], COLUMNS)


def append(world: World, sequence: int, **tables: pa.Table) -> None:
    """One commit of one file: `p0` and `p1` are the partitions' records."""
    given: dict[TopicIdPartition, pa.Table] = {{"p0": P0, "p1": P1}[name]: table for name, table in tables.items()}
    send(world.logs[1], *(request(p, t.num_rows, sequence) for p, t in given.items()), tables=given)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """flights-0 has offsets 0 to 5, the last is not committed; flights-1 lies in the same file as its first three."""
    world = World(str(tmp_path))
    append(world, 0, p0=at(0, 10, 20), p1=at(100, 200))
    append(world, 3, p0=at(5, 30, 40))
    world.say(5)
    world.say(2, P1)
    return world


@pytest.fixture
def show(lakelog: Run, world: World) -> Run:
    """Runs the verb on the cluster."""
    return lambda *words: lakelog(get_offsets, "--cluster", world.uri, *words)


# Time, and the offset of flights-0: as all is kept, as all below 1 is deleted, as all below 3 is deleted.
TIMES = {
    "latest": (5, 5, 5),
    "-1": (5, 5, 5),
    "earliest": (0, 1, 3),
    "-2": (0, 1, 3),
    "max-timestamp": (4, 4, 4),
    "-3": (4, 4, 4),
    "0": (0, 1, 3),
    str(NOON_MS): (0, 1, 3),
    str(NOON_MS + 1): (1, 1, 3),
    str(NOON_MS + 10): (1, 1, 4),
    str(NOON_MS + 11): (2, 2, 4),
    str(NOON_MS + 20): (2, 2, 4),
    str(NOON_MS + 30): (4, 4, 4),
    str(NOON_MS + 31): (None, None, None),  # the record of 40 ms is not committed
}


def lead_anew(world: World, high_watermark: int) -> None:
    """A new leader has all five committed records of six, but a lower HW."""
    lead(world.logs[1], P0, epoch=1)
    world.change(P0, leader_epoch=1)
    world.say(high_watermark)


# Time, and what it stands for as long as the HW is 2, below the start of the leader's epoch; WAITS: nobody knows yet.
WAITS = "OffsetNotAvailableException"
LAGGING = {"latest": WAITS, "max-timestamp": WAITS, "earliest": 0, str(NOON_MS + 1): 1, str(NOON_MS + 11): WAITS}


@pytest.mark.parametrize(("time", "expected"), LAGGING.items())
def test_kip_207_a_new_leader_with_a_low_hw_is_an_error_for_offsets_by_time(
    show: Run, world: World, tmp_path: Path, while_waiting: Any, time: str, expected: int | str
) -> None:
    lead_anew(world, 2)
    short = tmp_path / "short.properties"
    short.write_text("request.timeout.ms=1\n")
    while_waiting(*[lambda: None] * 10_000)
    status, out, err = show("--topic", TOPIC, "--time", time, "--partitions", "0", "--command-config", str(short))
    if expected == WAITS:
        assert (status, out) == (1, "")
        assert f"{WAITS}: {TOPIC}-0: the high watermark 2 is below 6" in err
    else:
        assert (status, out) == (0, f"{TOPIC}:0:{expected}\n")


@pytest.mark.parametrize(("time", "offset"), [("latest", 6), ("max-timestamp", 5), (str(NOON_MS + 11), 2)])
def test_kip_207_get_offsets_waits_until_a_new_leader_raises_its_hw(
    show: Run, world: World, while_waiting: Any, time: str, offset: int
) -> None:
    lead_anew(world, 2)
    while_waiting(lambda: world.say(4), lambda: world.say(6))
    status, out, _ = show("--topic", TOPIC, "--time", time, "--partitions", "0")
    assert (status, out) == (0, f"{TOPIC}:0:{offset}\n")


def test_kip_207_a_leader_that_has_just_been_elected_is_asked_again(
    show: Run, world: World, while_waiting: Any
) -> None:
    """Its log still has its former role, and then its row has."""
    world.change(P0, leader_epoch=1)
    while_waiting(lambda: lead(world.logs[1], P0, epoch=1), lambda: world.say(6))
    assert show("--topic", TOPIC) == (0, f"{TOPIC}:0:6\n{TOPIC}:1:2\n", "")


@pytest.mark.parametrize(("time", "expected"), TIMES.items())
def test_each_time_stands_for_an_offset(
    show: Run, world: World, time: str, expected: tuple[int | None, int | None, int | None]
) -> None:
    for log_start, offset in zip((0, 1, 3), expected, strict=True):
        start_at(world.logs[1], P0, log_start)
        lines = "" if offset is None else f"{TOPIC}:0:{offset}\n"
        assert show("--topic", TOPIC, "--partitions", 0, "--time", time) == (0, lines, "")


def test_the_largest_timestamp_is_that_of_a_committed_record(show: Run, world: World) -> None:
    """Reads the batch with the largest timestamp, of which only the first record is committed, and then the next."""
    world.say(4)
    assert show("--time", "max-timestamp")[1] == f"{TOPIC}:0:2\n{TOPIC}:1:1\n"


def test_a_partition_without_committed_records_has_no_offset_by_time(show: Run, world: World) -> None:
    world.say(0)
    assert show("--partitions", 0, "--time", "max-timestamp") == (0, "", "")
    assert json.loads(show("--partitions", 0, "--time", "0", "-o", "json")[1]) == [
        {"topic": TOPIC, "partition": 0, "offset": None, "timestamp": None, "error": None}
    ]


def test_all_topics_that_are_not_being_deleted(show: Run, world: World) -> None:
    world.cluster.topics.change([Topic("gone", "gone-id", 1, deleting=True)], (), {"who": "test"})
    assert show() == (0, f"{TOPIC}:0:5\n{TOPIC}:1:2\n", "")
    assert show("--partitions", "1,7") == (0, f"{TOPIC}:1:2\n", "")


def test_rows_have_timestamps_in_milliseconds(show: Run) -> None:
    rows = json.loads(show("--topic", TOPIC, "--time", NOON_MS + 30, "-o", "json")[1])
    assert [(r["partition"], r["offset"], r["timestamp"]) for r in rows] == [
        (0, 4, NOON_MS + 30),
        (1, 0, NOON_MS + 100),
    ]
    table = show("--topic", TOPIC, "-o", "table")[1].splitlines()
    assert [line.split()[:3] for line in table[2:]] == [[TOPIC, "0", "5"], [TOPIC, "1", "2"]]


def test_a_partition_in_error_is_named_and_the_others_are_shown(show: Run, world: World) -> None:
    world.change(P1, leader=-1, leader_epoch=1)
    assert show("--partitions", "0,1,7", "--topic", TOPIC) == (
        1,
        f"{TOPIC}:0:5\n",
        f"lakelog: LeaderNotAvailableException: {TOPIC}-1: no leader; replicas are (1, 2)\n"
        f"lakelog: UnknownTopicOrPartitionException: {TOPIC}-7: no such partition\n",
    )
    rows = json.loads(show("-o", "json")[1])
    assert [row["error"] for row in rows] == [None, "LeaderNotAvailableException"]


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (lambda world: follow(world.logs[1], P0, P1, epoch=1), "NotLeaderOrFollowerException"),
        (lambda world: truncate(world.logs[1], {P0: 0, P1: 0}), "LeaderNotAvailableException"),
        (lambda world: shutil.rmtree(world.roots[1].path("replicas")), "InconsistentClusterIdException"),
    ],
    ids=["its log follows by now", "its log has lost its end", "its root cannot be read"],
)
def test_a_leader_that_does_not_lead_or_cannot_be_read(
    show: Run, world: World, tmp_path: Path, happens: Any, error: str
) -> None:
    """It is asked again until the time of a request is over, as it may have been elected just now."""
    happens(world)
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=200\n")
    status, out, err = show("--command-config", str(config))
    assert (status, out) == (1, "")
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["lakelog", error]] * 2


def test_a_deleted_file_is_named_and_other_partitions_are_shown(show: Run, world: World) -> None:
    (second,) = {b.segment for b in world.logs[1].current().partition(P0).batches if b.base_offset == 3}
    world.logs[1].root.delete(second)
    status, out, err = show("--topic", TOPIC)
    assert (status, out) == (1, f"{TOPIC}:1:2\n")
    assert err.startswith("lakelog: CorruptRecordException: ")
    assert second in err


def test_a_topic_that_there_is_not(show: Run) -> None:
    refused = f"lakelog: UnknownTopicOrPartitionException: no topic planes; there are: {TOPIC}\n"
    assert show("--topic", "planes") == (1, "", refused)


@pytest.mark.parametrize(
    "words", [["--time", "soon"], ["--time", "-4"], ["--time", ""], ["--partitions", "0,x"], ["--partitions", "-1"]]
)
def test_wrong_usage_is_status_2(show: Run, words: list[str]) -> None:
    status, out, err = show(*words)
    assert (status, out) == (2, "")
    assert "lakelog get-offsets --help` lists the options" in err
