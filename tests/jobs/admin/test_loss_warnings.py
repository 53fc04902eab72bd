"""What unclean elections and deletions say before they lose records, on real tables without running brokers."""

from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs.admin import loss_warnings
from lakelog.jobs.admin.loss_warnings import (
    say_what_a_deletion_loses,
    say_what_reassignments_do,
    say_what_unclean_elections_lose,
)
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.cluster import Cluster
from tests.clients.world import World
from tests.jobs.admin.seen import beat, written
from tests.storage.logs import P0, P1, TOPIC, fill


@pytest.fixture
def world(tmp_path: Path, waits: list[float]) -> World:
    """Broker 1 is dead and was the last in sync. Of flights-0 broker 2 has two of five records, of flights-1 all."""
    assert waits == []
    world = World(str(tmp_path))
    fill(world.logs[1], P0, 5)
    for partition in (P0, P1):
        world.say(5 if partition == P0 else 0, partition)
        world.change(partition, leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1)
        end = 2 if partition == P0 else 0
        world.say(0, partition, broker=2, log_end_offset=end, epochs=world.rows[1][partition].epochs)
    for broker in (1, 2):
        beat(world.uri, broker)
    written(f"{world.uri}/brokers/1", 300.0)
    return world


LOSES = f"{TOPIC}-0: broker 2 leads, and 3 committed records are lost, from offset 2 on"
LOSES_NONE = f"{TOPIC}-1: broker 2 leads, and no committed record is lost"


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("No recent heartbeat")]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (None, [LOSES, LOSES_NONE]),
        ({f"{TOPIC}-1"}, [LOSES_NONE]),
        ({f"{TOPIC}-7"}, []),
        (set(), []),
    ],
)
def test_what_an_unclean_election_loses(
    world: World, capsys: pytest.CaptureFixture[str], chosen: set[str] | None, words: list[str]
) -> None:
    say_what_unclean_elections_lose(Cluster.open(world.uri), chosen)
    assert said(capsys) == words


def test_a_partition_with_a_leader_loses_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.change(P0, leader=2, isr=(2,), leader_epoch=2, partition_epoch=2)
    say_what_unclean_elections_lose(Cluster.open(world.uri), None)
    assert said(capsys) == [LOSES_NONE]


def test_those_that_lose_most_stand_for_many(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_warnings, "_SHOWN", 1)
    say_what_unclean_elections_lose(Cluster.open(world.uri), None)
    assert said(capsys) == [LOSES, "… and 1 more; all 2 partitions lose 3 committed records"]


def test_what_cannot_be_read_keeps_nobody_from_the_election(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise KafkaStorageException("away")

    monkeypatch.setattr(loss_warnings, "observe_brokers", away)
    say_what_unclean_elections_lose(Cluster.open(world.uri), None)
    assert said(capsys) == ["lakelog: what is lost is not known: KafkaStorageException: away"]


def test_what_a_deletion_loses(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say_what_a_deletion_loses(Cluster.open(world.uri), TOPIC)
    assert said(capsys) == [f"{TOPIC}: 5 committed records are lost"]
    monkeypatch.setattr(loss_warnings, "rows_of", lambda *_: {1: "KafkaStorageException: away", 2: {}})
    say_what_a_deletion_loses(Cluster.open(world.uri), TOPIC)
    more = "and those of 2 partitions whose leaders' rows cannot be read"
    assert said(capsys) == [f"{TOPIC}: 0 committed records are lost, {more}"]


@pytest.mark.parametrize(
    ("change", "targets", "words"),
    [
        (
            {"leader": 1, "isr": (1, 2)}, {f"{TOPIC}-0": [2]},
            [f"Leaders after the moves: {TOPIC}-0 from broker 1 to broker 2"],
        ),
        ({"leader": 1, "isr": (1, 2)}, {f"{TOPIC}-0": [1]}, ["The moves change no leader."]),
        ({"leader": 1, "isr": (1, 2)}, {f"{TOPIC}-7": [1]}, ["The moves change no leader."]),
        (
            {"leader": 1, "isr": (1,)}, {f"{TOPIC}-0": [2]},
            [
                "The moves change no leader.",
                f"lakelog: warning: moves that wait for a leader or a live replica: {TOPIC}-0",
            ],
        ),
    ],
)  # fmt: skip
def test_who_leads_after_reassignments(
    world: World, capsys: pytest.CaptureFixture[str], change: dict[str, Any], targets: dict[str, list[int]],
    words: list[str],
) -> None:  # fmt: skip
    world.change(P0, leader_epoch=2, partition_epoch=2, **change)
    beat(world.uri, 1)
    say_what_reassignments_do(Cluster.open(world.uri), targets)
    assert said(capsys) == words
