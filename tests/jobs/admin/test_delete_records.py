"""`lakelog delete-records` on real tables without running brokers: the tests write the replica rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import delete_records
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clients.world import World
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, fill

Run = Any  # what a verb has answered: (status, stdout, stderr)
WORDS = "Executing records delete operation\nRecords delete operation completed:\n"
HIGH_WATERMARKS = {P0: 8, P1: 3}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """flights-0 has 10 records, 8 of them committed; flights-1 has 3, all committed."""
    world = World(str(tmp_path))
    fill(world.logs[1], P0, 4, 6)
    fill(world.logs[1], P1, 3)
    brokers_follow(world)
    return world


def start(world: World, partition: TopicIdPartition = P0) -> int:
    return world.logs[1].refresh().partition(partition).log_start_offset


def brokers_follow(world: World, brokers: tuple[int, ...] = (1, 2)) -> None:
    """Publishes the leader's log start in the brokers' rows."""
    for broker in brokers:
        for partition, high_watermark in HIGH_WATERMARKS.items():
            world.say(high_watermark, partition, broker, log_start_offset=start(world, partition))


def offsets(**wanted: int) -> dict[str, Any]:
    """Kafka's JSON: `flights_0=5`."""
    named = [(name.split("_"), offset) for name, offset in wanted.items()]
    return {"version": 1, "partitions": [{"topic": t, "partition": int(p), "offset": o} for (t, p), o in named]}


@pytest.fixture
def delete(lakelog: Run, world: World) -> Run:
    """Runs the verb on the cluster."""
    return lambda *words: lakelog(delete_records, "--cluster", world.uri, *words)


def of_one(before: int, partition: int = 0, topic: str = TOPIC) -> tuple[object, ...]:
    return ("--topic", topic, "--partition", partition, "--before-offset", before)


def test_dr_01_dr_02_a_file_names_offsets_and_the_low_watermarks_are_printed(
    delete: Run,
    world: World,
    write: Any,
    while_waiting: Any,
) -> None:
    left = while_waiting(lambda: brokers_follow(world))
    file = write(offsets(flights_0=5, flights_1=-1))
    told = "partition: flights-0\tlow_watermark: 5\npartition: flights-1\tlow_watermark: 3\n"
    assert delete("--offset-json-file", file) == (0, told, WORDS)
    assert (start(world), start(world, P1)) == (5, 3)
    assert next(left, None) is None


def test_dr_01_one_partition_is_named_by_words(delete: Run, world: World, while_waiting: Any) -> None:
    while_waiting(lambda: brokers_follow(world))
    status, out, err = delete(*of_one(-1), "-o", "json")
    (row,) = json.loads(out)
    assert (status, err, row["low_watermark"], row["error"], row["dry_run"]) == (0, WORDS, 8, None, False)
    assert start(world) == 8


def test_dr_01_each_partition_that_is_refused_has_its_error_and_the_others_go_on(
    delete: Run,
    world: World,
    write: Any,
    while_waiting: Any,
) -> None:
    while_waiting(lambda: brokers_follow(world))
    file = write(offsets(flights_0=9, flights_1=2, flights_7=1, planes_0=1))
    status, out, _ = delete("--offset-json-file", file)
    told = [line.split("\t")[1].split(": ")[:2] for line in out.splitlines()]
    assert status == 1
    assert told == [
        ["error", "OffsetOutOfRangeException"],
        ["low_watermark", "2"],
        ["error", "UnknownTopicOrPartitionException"],
        ["error", "UnknownTopicOrPartitionException"],
    ]
    assert (start(world), start(world, P1)) == (0, 2)


def test_dr_02_a_replica_that_does_not_follow_in_time_is_a_timeout(delete: Run, world: World, tmp_path: Path) -> None:
    (tmp_path / "client").write_text("request.timeout.ms=1\n")
    status, out, err = delete(*of_one(5), "--command-config", tmp_path / "client", "-o", "json")
    (row,) = json.loads(out)
    assert (status, row["error"], row["low_watermark"]) == (1, "TimeoutException", None)
    assert "lakelog: TimeoutException: " in err
    assert start(world) == 5


REFUSED = {
    "above the high watermark": (of_one(9), "OffsetOutOfRangeException"),
    "no such partition": (of_one(1, partition=7), "UnknownTopicOrPartitionException"),
    "no such topic": (of_one(1, topic="planes"), "UnknownTopicOrPartitionException"),
    "an internal topic": (of_one(1, topic="__offsets"), "InvalidTopicException"),
}


@pytest.mark.parametrize(("words", "error"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["for good", "tried"])
def test_dr_01_a_deletion_that_cannot_be_is_refused_and_writes_nothing(
    delete: Run, world: World, words: Any, error: str, dry_run: list[str]
) -> None:
    version = world.logs[1].refresh().version
    status, out, _ = delete(*words, *dry_run)
    assert (status, out.split("\t")[1].split(": ")[1]) == (1, error)
    assert world.logs[1].refresh().version == version


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["for good", "tried"])
def test_dr_01_a_topic_that_keeps_everything_and_a_leader_that_is_not_there_yet(
    delete: Run, world: World, tmp_path: Path, dry_run: list[str]
) -> None:
    (tmp_path / "client").write_text("request.timeout.ms=1\n")
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, {"cleanup.policy": "none"})], (), {"who": "test"})
    world.change(P1, leader=-1, leader_epoch=1)
    for number, error in enumerate(["PolicyViolationException", "LeaderNotAvailableException"]):
        status, out, _ = delete(*of_one(1, number), "--command-config", tmp_path / "client", *dry_run)
        assert (status, out.split("\t")[1].split(": ")[1]) == (1, error)


def test_dr_01_a_dry_run_prints_how_many_records_would_be_deleted_and_writes_nothing(
    delete: Run, world: World, write: Any
) -> None:
    world.say(3, P1, log_start_offset=2)
    version = world.logs[1].refresh().version
    file = write(offsets(flights_0=-1, flights_1=0))
    assert delete("--offset-json-file", file, "--dry-run") == (
        0,
        "partition: flights-0\tlow_watermark: 0\t8 records would be deleted, offsets 0 to 7\n"
        "partition: flights-1\tlow_watermark: 0\tnothing would be deleted\n",
        "Nothing was written. This is what would be done.\n",
    )
    rows = json.loads(delete("--offset-json-file", file, "--dry-run", "-o", "json")[1])
    assert [(row["records"], row["dry_run"]) for row in rows] == [(8, True), (0, True)]
    assert world.logs[1].refresh().version == version


def test_dr_02_a_dry_run_counts_the_live_replicas_only(delete: Run, world: World) -> None:
    """Broker 2 has no valid row of flights-0. First it is alive, then it shuts down."""
    del world.rows[2][P0]
    world.say(3, P1, broker=2)
    assert "\tlow_watermark: -1\t" in delete(*of_one(5), "--dry-run")[1]
    BrokerTable.open(world.cluster.root, 2).heartbeat(1, "test", shutting_down=True)
    assert "\tlow_watermark: 0\t" in delete(*of_one(5), "--dry-run")[1]


ONE = {"topic": TOPIC, "partition": 0, "offset": 1}
MALFORMED = {
    "not JSON": ("{", "cannot be read"),
    "no partitions": ({"version": 1}, '"partitions" in it a list'),
    "another version": ({"version": 2, "partitions": [ONE]}, '"version" is 2'),
    "no topic": ({"partitions": [{"partition": 0, "offset": 1}]}, '"topic" of '),
    "no partition": ({"partitions": [{"topic": TOPIC, "offset": 1}]}, '"partition" of '),
    "no offset": ({"partitions": [{"topic": TOPIC, "partition": 0}]}, '"offset" of '),
    "an offset in words": ({"partitions": [{**ONE, "offset": "all"}]}, '"offset" of '),
    "no offset but a truth": ({"partitions": [{**ONE, "offset": True}]}, '"offset" of '),
    "twice": ({"partitions": [ONE, {**ONE, "offset": 2}]}, "stands there twice"),
}


@pytest.mark.parametrize(("content", "fault"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_named_and_nothing_is_deleted(
    delete: Run, world: World, write: Any, content: Any, fault: str
) -> None:
    file = write(content)
    status, out, err = delete("--offset-json-file", file)
    assert (status, out, start(world)) == (2, "", 0)
    assert str(file) in err
    assert fault in err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--topic", TOPIC],
        ["--topic", TOPIC, "--partition", "0"],
        ["--topic", TOPIC, "--before-offset", "0"],
        ["--offset-json-file", "/none/such.json"],
    ],
)
def test_wrong_usage_is_status_2(delete: Run, words: list[str]) -> None:
    status, out, err = delete(*words)
    assert (status, out) == (2, "")
    assert "lakelog delete-records --help` lists the options" in err
