"""`lakelog what-if` on real tables without running brokers: the tests write the heartbeats and the replica rows."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import what_if
from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.delta.table_history import utc
from lakelog.replication.storage.root_identity import lies_in
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clients.world import World
from tests.jobs.admin.seen import written
from tests.jobs.admin.test_status import lines
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, fill

Run = Any  # what a verb has answered: (status, stdout, stderr)
FILES = "**/_delta_log/*"


def alive(world: World) -> World:
    """Broker 1 leads both partitions; flights-0 has three records, and broker 2 lacks the last one."""
    fill(world.logs[1], P0, 3)
    world.say(2, P0)
    world.say(0, P1)
    world.say(2, P0, broker=2, log_end_offset=2, epochs=world.rows[1][P0].epochs)
    world.say(0, P1, broker=2)
    world.cluster.lease.elect("c", None)
    for broker, rack in ((1, "eu-1"), (2, "eu-2")):
        world.put_in_rack(broker, rack)
        BrokerTable.open(world.cluster.root, broker).heartbeat(1, "heartbeat")
    for root in world.cluster.root.parts:
        for table in ("controller", "brokers/1", "brokers/2"):
            written(f"{root.uri}/{table}", 1.0)
    return world


@pytest.fixture
def world(tmp_path: Path, waits: list[float]) -> World:
    """Two brokers that are alive and in sync, and an active controller."""
    assert waits == []
    return alive(World(str(tmp_path)))


@pytest.fixture
def show(lakelog: Run, world: World) -> Run:
    """Runs the verb on the cluster."""
    return lambda *words: lakelog(what_if, "--cluster", world.uri, *words)


KILLED = """\
what if     broker 1 killed
partitions  2 of 2 change: 0 offline, 0 under min ISR, 2 with a new leader, 2 with a smaller ISR
records     no committed record is at risk; 1 above the HW, which acks=1 acknowledges, may be lost
new leader  at most 6.15 s after the loss, and two commits: 6 s without a heartbeat (broker.session.timeout.ms), \
0.15 s for polls of the controller and the new leader (lakelog.poll.interval.ms)

partition   leader   new leader   isr    new isr   outcome      at risk
───────────────────────────────────────────────────────────────────────
flights-0        1            2   1, 2   2         new leader         0
flights-1        1            2   1, 2   2         new leader         0
"""


def test_nothing_goes_wrong_is_status_0(show: Run, waits: list[float]) -> None:
    code, out, err = show("--kill", "1")
    assert (code, lines(out), err) == (0, KILLED.splitlines(), "")
    assert waits == []


@pytest.mark.parametrize(
    ("words", "killed", "stopped"),
    [
        (("--kill", "1,2"), [1, 2], []),
        (("--kill", "1", "--stop", "2"), [1], [2]),
        (("--kill-rack", "eu-1"), [1], []),
        (("--kill", "2", "--kill-rack", "eu-1"), [1, 2], []),
        (("--stop", "1"), [], [1]),
    ],
)
def test_who_is_lost(show: Run, words: tuple[str, ...], killed: list[int], stopped: list[int]) -> None:
    code, out, _ = show(*words, "-o", "json")
    told = json.loads(out)
    assert (told["killed"], told["stopped"], told["lost_broker_roots"]) == (killed, stopped, [])
    is_harmless = len({*killed, *stopped}) == 1
    assert (told["ok"], code) == (is_harmless, 0 if is_harmless else 1)
    assert (told["new_leader_ms"] is None) == (not killed)


def test_all_of_it_in_json(show: Run, world: World) -> None:
    code, out, _ = show("--kill", "1,2", "-o", "json")
    told = json.loads(out)
    assert code == 1
    assert told.pop("new_leader_ms_parts")[0]["ms"] == 6000
    assert told.pop("counts")["offline"] == 2
    first = told.pop("changes")[0]
    assert told == {
        "ok": False, "cluster": world.uri, "at": None, "killed": [1, 2], "stopped": [], "lost_broker_roots": [],
        "lost_cluster_roots": [], "cluster_roots": {"voting": 1, "left": 1, "needed": 1}, "metadata_version": 1,
        "partitions": 2, "new_leader_ms": 6150, "notes": [],
    }  # fmt: skip
    assert first == {
        "partition": "flights-0", "leader": 1, "new_leader": None, "isr": [1, 2], "new_isr": [2], "outcome": "offline",
        "at_risk": 2, "at_risk_from": 0, "is_lost": False, "acks_1_at_risk": 1, "is_under_min_isr": False,
        "unclean_leader": None, "unclean_loses": None, "why": "no replica is left",
    }  # fmt: skip


def test_a_folder_is_lost_with_all_roots_in_it(show: Run, world: World, tmp_path: Path) -> None:
    told = json.loads(show("--lose-root", world.roots[1].uri, "-o", "json")[1])
    assert (told["lost_broker_roots"], told["lost_cluster_roots"], told["ok"]) == ([1], [], True)
    code, out, _ = show("--lose-root", f"{tmp_path}/")
    assert code == 1
    assert lines(out)[:5] == [
        f"what if     brokers 1, 2 lost with the root; cluster root {world.uri} lost",
        "partitions  2 of 2 change: 2 offline, 0 under min ISR",
        "records     2 committed records are LOST; 1 above the HW, which acks=1 acknowledges, may be lost",
        "new leader  none before a majority of the cluster roots is back",
        "roots       0 of 1 cluster roots are left, and 1 decide: NO leader is elected, and no ISR changes",
    ]


def test_what_is_wrong_already_is_a_note_and_no_reason_for_status_1(show: Run, world: World) -> None:
    world.change(P1, leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1)
    world.change(P0, leader=2, isr=(2,), leader_epoch=1, partition_epoch=1)
    written(f"{world.uri}/brokers/1", 312.0)
    written(f"{world.uri}/controller", 60.0)
    code, out, err = show("--kill", "1")
    assert (code, err) == (0, "No recent heartbeat from broker 1, the controller: looking again in 3 s\n")
    assert lines(out)[1:] == [
        "partitions  0 of 2 change: 0 offline, 0 under min ISR",
        "records     no committed record is at risk",
        "new leader  nobody has to be elected",
        "Note: broker 1 counts as lost already: dead.",
        "Note: no controller is active: nothing of this is decided before one is.",
        f"Note: without a leader anyway: {TOPIC}-1.",
    ]


def test_without_a_controller_nobody_is_elected(show: Run, world: World) -> None:
    written(f"{world.uri}/controller", 60.0)
    code, out, _ = show("--stop", "1")
    assert (code, lines(out)[3]) == (
        0, "new leader  none before a controller is active; then a broker that stops hands over before it ends",
    )  # fmt: skip


def test_a_dead_broker_that_no_controller_has_noticed(show: Run, world: World) -> None:
    written(f"{world.uri}/brokers/1", 312.0)
    told = json.loads(show("--kill", "2", "-o", "json")[1])
    assert told["notes"] == [
        "broker 1 counts as lost already: dead",
        f"a controller has yet to decide on what has happened already, which changes {TOPIC}-0, {TOPIC}-1",
    ]
    assert [change["new_leader"] for change in told["changes"]] == [None, None]


def test_a_setting_of_the_topic_counts(show: Run, world: World) -> None:
    configs = {"min.insync.replicas": "2"}
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, configs)], (), {"who": "test"})
    code, out, _ = show("--stop", "2")
    assert code == 1
    assert "partitions  2 of 2 change: 0 offline, 2 under min ISR, 2 with a smaller ISR" in lines(out)
    assert lines(out)[-1] == f"- {TOPIC}-0, {TOPIC}-1: 1 in sync, and acks=all needs 2"


def test_settings_of_processes_are_those_of_the_file(show: Run, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.session.timeout.ms=9000\nunclean.leader.election.enable=true\n")
    told = json.loads(show("--kill", "1", "--command-config", file, "-o", "json")[1])
    assert told["new_leader_ms"] == 9150


def test_rows_that_cannot_be_read_are_a_note(show: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise KafkaStorageException("away")

    monkeypatch.setattr("lakelog.jobs.admin.published_rows.check_identity", away)
    code, out, _ = show("--kill", "1,2")
    assert code == 1
    assert "records     2 partitions of which it is not known what is at risk" in lines(out)
    assert "Note: the rows of broker 1 cannot be read: KafkaStorageException: away." in lines(out)


def test_a_long_table_shows_the_worst(show: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakelog.jobs.admin.loss_report._SHOWN", 1)
    _, out, err = show("--kill", "1")
    assert sum(line.startswith(TOPIC) for line in lines(out)) == 1
    assert err == "The table has 1 of 2 partitions, the worst first; -o json has all.\n"


def test_a_broker_is_either_killed_or_stopped(show: Run) -> None:
    code, _, err = show("--kill-rack", "eu-1", "--stop", "1")
    assert (code, err.split(";")[0]) == (
        2, "lakelog what-if: broker 1 is both killed and stopped: it can only be one of the two",
    )  # fmt: skip


def test_it_writes_nothing(show: Run, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.glob(FILES))
    show("--kill", "1,2")
    assert sorted(path.name for path in tmp_path.glob(FILES)) == before


@pytest.mark.parametrize(
    ("lost", "left", "outcomes"), [((1,), 2, ["new leader", "new leader"]), ((1, 3), 1, ["offline", "offline"])]
)
def test_one_or_two_of_three_cluster_roots(
    tmp_path: Path, waits: list[float], lakelog: Run, lost: tuple[int, ...], left: int, outcomes: list[str]
) -> None:
    assert waits == []
    alive(World(str(tmp_path), 3))
    words = [word for number in lost for word in ("--cluster-root", f"{tmp_path}/cluster-{number}")]
    code, out, err = lakelog(what_if, "--cluster", f"{tmp_path}/cluster-1", "--kill", "1", *words, "-o", "json")
    told = json.loads(out)
    assert (told["cluster_roots"], code, err) == ({"voting": 3, "left": left, "needed": 2}, 0 if left == 2 else 1, "")
    assert [change["outcome"] for change in told["changes"]] == outcomes
    assert (told["new_leader_ms"] is None) == (left < 2)


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_cluster_root_that_is_lost_already_has_no_vote(
    tmp_path: Path, waits: list[float], lakelog: Run, is_emptied: bool
) -> None:
    assert waits == []
    world = alive(World(str(tmp_path), 3))
    (tmp_path / "cluster-2").rename(tmp_path / "away")
    (tmp_path / "cluster-2").mkdir() if is_emptied else (tmp_path / "cluster-2").write_text("no folder")
    words = ("--cluster", world.uri, "--cluster-root", f"{tmp_path}/cluster-3", "-o", "json")
    told = json.loads(lakelog(what_if, *words)[1])
    assert told["cluster_roots"] == {"voting": 3, "left": 1, "needed": 2}
    assert (told["ok"], told["changes"]) == (False, [])


THEN = 1_700_000_000  # when all that the fixture has made was committed; broker 2 is lost 100 s later


@pytest.fixture
def past(world: World, tmp_path: Path) -> World:
    """The cluster, of which broker 2 has left the ISR of flights-0 since; only broker 1 still sends heartbeats."""
    for path in tmp_path.glob("**/_delta_log/*.json"):
        os.utime(path, (THEN, THEN))
    world.change(P0, isr=(1,), partition_epoch=1)
    world.say(3, P0)
    BrokerTable.open(world.cluster.root, 1).heartbeat(1, "heartbeat")
    for table in (f"{world.uri}/metadata", f"{world.uri}/brokers/1", f"{world.roots[1].uri}/replicas"):
        os.utime(max(Path(table, "_delta_log").glob("*.json")), (THEN + 100, THEN + 100))
    return world


@pytest.mark.parametrize(
    ("words", "after", "outcomes", "at_risk", "notes"),
    [
        (("--kill", 1), 1, ["new leader", "new leader"], 0, []),
        (("--kill", 1), 99, [], 0, ["broker 1 counts as lost already: dead", "broker 2 counts as lost already: dead"]),
        (("--kill", 1), 101, ["offline", "offline"], 3, ["broker 2 counts as lost already: dead"]),
        (("--stop", 1), 1, ["new leader", "new leader"], 0, []),
    ],
)
def test_what_if_it_had_happened_at_an_earlier_time(
    show: Run, past: World, words: tuple[object, ...], after: int, outcomes: list[str], at_risk: int, notes: list[str]
) -> None:
    assert past.cluster.metadata.version == 2
    told = json.loads(show(*words, "--at", (THEN + after) * 1000, "-o", "json")[1])
    assert [change["outcome"] for change in told["changes"]] == outcomes
    assert told["counts"]["records_at_risk"] == at_risk
    assert [note for note in told["notes"] if note.startswith("broker")] == notes
    assert (told["at"], told["metadata_version"]) == (utc(THEN + after), 2 if after > 99 else 1)


@pytest.mark.parametrize(
    "at", ["1700000001000", "2023-11-14T22:13:21", "2023-11-14T23:13:21+01:00", "2023-11-14T22:13:21Z"]
)
def test_a_time_may_be_written_in_several_ways(show: Run, past: World, at: str) -> None:
    assert past.uri
    assert lines(show("--kill", 1, "--at", at)[1])[0] == "what if     broker 1 killed, at 2023-11-14T22:13:21+00:00"


def test_without_history_back_to_that_time_it_refuses(show: Run, past: World) -> None:
    code, out, err = show("--kill", 1, "--at", (THEN - 1) * 1000)
    assert (code, out) == (1, "")
    assert "its history does not reach back to 2023-11-14T22:13:19+00:00" in err
    assert past.uri in err


def test_a_broker_that_registered_later_was_not_there(show: Run, past: World, tmp_path: Path) -> None:
    for path in Path(past.uri, "brokers", "2", "_delta_log").glob("*.json"):
        os.utime(path, (THEN + 50, THEN + 50))
    code, _, err = show("--kill", 2, "--at", (THEN + 1) * 1000)
    assert (code, err) == (
        1, "lakelog: BrokerNotAvailableException: --kill: broker 2 has not registered; there are: 1\n",
    )  # fmt: skip
    assert tmp_path.exists()


def test_several_cluster_roots_have_no_history_of_heartbeats(tmp_path: Path, waits: list[float], lakelog: Run) -> None:
    assert waits == []
    world = alive(World(str(tmp_path), 3))
    code, _, err = lakelog(what_if, "--cluster", world.uri, "--kill", 1, "--at", THEN * 1000)
    assert code == 1
    assert "the heartbeats of a cluster with several roots have no history" in err


@pytest.mark.parametrize(
    ("root", "folder", "expected"),
    [
        ("/lake/broker-1", "/lake", True),
        ("/lake/broker-1", "/lake/", True),
        ("/lake/broker-1", "/lake/broker-1", True),
        ("/lake/broker-1", "/lake/broker", False),
        ("/lake", "/lake/broker-1", False),
        ("/lake", "/", True),
        ("s3://eu-1/lake", "s3://eu-1", True),
        ("s3a://eu-1/lake", "s3://eu-1/", True),
        ("s3://eu-12/lake", "s3://eu-1", False),
        ("gs://eu-1/lake", "s3://eu-1", False),
    ],
)
def test_a_root_is_lost_with_the_folder_around_it(root: str, folder: str, expected: bool) -> None:
    assert lies_in(root, folder) == expected
