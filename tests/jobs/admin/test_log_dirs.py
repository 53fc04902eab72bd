"""`lakelog log-dirs` on real roots without running brokers: the tests write the replica rows."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakelog.jobs import log_dirs
from lakelog.replication.config import Config
from lakelog.replication.protocol.partition_log import LEADER, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clients.world import World
from tests.jobs.admin.seen import beat, written
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, chain, fill, lead, records, request, send, start_at

Run = Any  # what a verb has answered: (status, stdout, stderr)
ASKED = "Querying brokers for log directories information\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Broker 1 has flights-0 in two files, and flights-1 in one of them. Broker 2's rows say that it has nothing."""
    world = World(str(tmp_path))
    tables = {P0: records(b"1234", b"1234", b"1234"), P1: records(b"123456789")}
    send(world.logs[1], request(P0, 3), request(P1, 1), tables=tables)
    fill(world.logs[1], P0, 2)
    start_at(world.logs[1], P0, 1)
    world.say(4)
    world.say(1, P1)
    world.say(0, broker=2, lag=4)
    world.say(0, P1, broker=2)
    return world


@pytest.fixture
def show(lakelog: Run, world: World, waits: list[float]) -> Run:
    """Runs the verb on the cluster. The brokers are alive."""
    for broker in (1, 2):
        beat(world.uri, broker)
    assert waits == []
    return lambda *words: lakelog(log_dirs, "--cluster", world.uri, "--describe", *words)


def sizes(world: World) -> dict[str, int]:
    """Bytes of the files of broker 1, by whether they hold both partitions."""
    found = [s for s in world.logs[1].refresh().segments.values() if all(header.bytes for header in s.headers)]
    return {"both" if len(segment.headers) == 2 else "one": segment.file.size for segment in found}


def test_a_partition_has_its_share_of_the_files_that_it_lies_in(show: Run, world: World) -> None:
    """15 bytes of keys and values against 10."""
    status, out, err = show("-o", "json")
    rows = {(row["broker"], row["partition"]): row for row in json.loads(out)}
    both, one = sizes(world)["both"], sizes(world)["one"]
    assert (status, err) == (0, ASKED + "Received log directory information from brokers 1,2\n")
    assert rows[1, 0] == {
        "broker": 1, "root": world.roots[1].uri, "topic": TOPIC, "partition": 0, "topic_id": TOPIC_ID,
        "size": both * 15 // 25 + one, "files": 2, "log_start_offset": 1, "log_end_offset": 5, "high_watermark": 4,
        "lag": 0, "role": "leader", "chain": chain(world.logs[1]), "history": "same", "error": None,
        "broker_state": "alive", "heartbeat_age_s": 1.0, "note": None,
    }  # fmt: skip
    assert (rows[1, 1]["size"], rows[1, 1]["files"]) == (both * 10 // 25, 1)
    facts = ("size", "files", "log_end_offset", "high_watermark", "lag", "role")
    assert [rows[2, 0][name] for name in facts] == [0, 0, 0, 0, 4, "follower"]


def test_a_batch_of_empty_records_has_a_share_of_its_file(show: Run, world: World) -> None:
    empty = records(None).set_column(0, "key", pa.array([None], pa.binary()))
    send(world.logs[1], request(P0, 1, 5), request(P1, 1, 1), tables={P0: empty, P1: empty})
    (added,) = {b.segment for b in world.logs[1].refresh().partition(P0).batches if b.header.bytes == 0}
    before, size = sizes(world)["both"] * 10 // 25, world.logs[1].current().segments[added].file.size
    assert json.loads(show("-o", "json")[1])[1]["size"] == before + size // 2


def test_text_is_kafkas_line_of_json(show: Run, world: World) -> None:
    status, out, _ = show("--broker-list", "2,1")
    found = json.loads(out)
    assert (status, out.count("\n"), found["version"]) == (0, 1, 1)
    assert [broker["broker"] for broker in found["brokers"]] == [1, 2]
    (log_dir,) = found["brokers"][1]["logDirs"]
    assert (log_dir["error"], log_dir["logDir"]) == (None, world.roots[2].uri)
    assert [(p["partition"], p["size"], p["offsetLag"], p["isFuture"]) for p in log_dir["partitions"]] == [
        (f"{TOPIC}-0", 0, 4, False),
        (f"{TOPIC}-1", 0, -1, False),  # its broker has not read it yet
    ]


def test_a_replica_without_a_published_row_is_shown_from_its_log(show: Run, world: World) -> None:
    """For a broker that has not published its rows, or still has files of a deleted topic."""
    del world.rows[1][P0]
    world.say(1, P1)
    left_over, _ = json.loads(show("--broker-list", 1, "-o", "json")[1])
    names = ("partition", "log_end_offset", "high_watermark", "lag", "role")
    assert [left_over[name] for name in names] == [0, 5, None, None, "leader"]


def test_a_topic_that_there_is_not_is_an_error(show: Run) -> None:
    status, out, err = show("--topic-list", f"{TOPIC},planes")
    assert (status, out) == (1, "")
    assert err == ASKED + f"lakelog: UnknownTopicOrPartitionException: no topic planes; there are: {TOPIC}\n"


def test_topic_list_chooses_replicas_of_a_deleted_topic(show: Run, world: World) -> None:
    world.cluster.topics.change((), [TOPIC], {"who": "test"})
    assert not world.cluster.topics.topics
    rows = json.loads(show("--topic-list", TOPIC, "-o", "json")[1])
    assert {row["topic"] for row in rows} == {TOPIC}


def test_topic_list_chooses_the_topics_shown(show: Run, world: World) -> None:
    planes = [Topic(name, f"{name}-id", 1) for name in ("planes", "trains")]
    world.cluster.topics.change(planes, (), {"who": "test"})
    rows = json.loads(show("--topic-list", "planes,trains", "-o", "json")[1])
    assert [(row["broker"], row["topic"], row["error"]) for row in rows] == [(1, None, None), (2, None, None)]
    rows = json.loads(show("--topic-list", f"planes,{TOPIC}", "-o", "json")[1])
    assert [(row["broker"], row["partition"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]


BREAK = {
    "gone": (lambda world: shutil.rmtree(world.roots[1].uri), "InconsistentClusterIdException: "),
    "another broker's": (
        lambda world: BrokerTable.open(world.cluster.root, 1).heartbeat(1, "test", root=world.roots[2].uri),
        "InconsistentClusterIdException: ",
    ),
}


@pytest.mark.parametrize(("happens", "error"), BREAK.values(), ids=BREAK)
def test_ol_02_a_root_that_cannot_be_read_is_a_row_and_the_others_are_shown(
    show: Run, world: World, happens: Any, error: str
) -> None:
    happens(world)
    status, out, _ = show("-o", "json")
    broken, *others = json.loads(out)
    assert (status, broken["broker"], broken["partition"]) == (1, 1, None)
    assert broken["error"].startswith(error)
    assert [(row["broker"], row["error"]) for row in others] == [(2, None), (2, None)]
    (log_dir,) = json.loads(show()[1])["brokers"][0]["logDirs"]
    assert (log_dir["error"], log_dir["partitions"]) == (broken["error"], [])
    assert len(show("-o", "table")[1].splitlines()) == 2 + 3


def _lose_files(world: World) -> None:
    for name in world.logs[1].current().segments:
        world.logs[1].root.delete(name)


def _spoil_footers(world: World) -> None:
    root, ours, spoilt = world.logs[1].root, f'[["{TOPIC}'.encode(), f'[{{"{TOPIC}'.encode()
    for name in world.logs[1].current().segments:
        assert ours in root.read(name)
        Path(root.path(name)).write_bytes(root.read(name).replace(ours, spoilt))


@pytest.mark.parametrize("happens", [_lose_files, _spoil_footers])
def test_ol_02_partitions_with_broken_files_are_in_error_with_published_offsets(
    show: Run, world: World, happens: Any
) -> None:
    happens(world)
    status, out, _ = show("-o", "json")
    broken, others = json.loads(out)[:2], json.loads(out)[2:]
    assert status == 1
    assert [(row["broker"], row["error"]) for row in others] == [(2, None), (2, None)]
    assert all(row["error"].startswith("CorruptRecordException: ") for row in broken)
    assert [(row["size"], row["log_start_offset"], row["log_end_offset"]) for row in broken] == [(0, 1, 5), (0, 0, 1)]
    (log_dir,) = json.loads(show()[1])["brokers"][0]["logDirs"]
    assert (log_dir["error"], [p["error"] for p in log_dir["partitions"]]) == (None, [row["error"] for row in broken])


def test_ol_02_the_storage_error_that_a_broker_published_is_shown(show: Run, world: World) -> None:
    BrokerTable.open(world.cluster.root, 2).heartbeat(1, "test", storage_error="disk full")
    status, out, _ = show("-o", "json")
    assert status == 1
    assert [(row["broker"], row["error"], row["partition"]) for row in json.loads(out)] == [
        (1, None, 0), (1, None, 1), (2, "disk full", 0), (2, "disk full", 1),
    ]  # fmt: skip


def test_rows_of_a_dead_broker_are_marked_as_stale(show: Run, world: World) -> None:
    beat(world.uri, 2, 312.0, shutting_down=False)
    status, out, err = show("-o", "json")
    notes = [(row["broker"], row["broker_state"], row["note"]) for row in json.loads(out)]
    stale = "stale: broker dead, heartbeat 5 min ago"
    assert (status, notes) == (0, [(1, "alive", None)] * 2 + [(2, "dead", stale)] * 2)
    assert err.startswith("No recent heartbeat from broker 2: looking again in 3 s\n")
    states = [(b["broker"], b["brokerState"], b["heartbeatAgeSeconds"]) for b in json.loads(show()[1])["brokers"]]
    assert states == [(1, "alive", 1.0), (2, "dead", 312.0)]
    beat(world.uri, 2, 312.0, shutting_down=True, storage_error="disk full")
    assert json.loads(show("-o", "json")[1])[-1]["note"] == "disk full; stale: broker stopped, heartbeat 5 min ago"


def test_a_table_fits_on_80_characters_and_has_all_columns_on_demand(
    show: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(f"{world.uri}/brokers/2", 312.0)
    heads = show("-o", "table")[1].splitlines()[0].split()
    assert heads == ["broker", "topic", "partition", "size", "lag", "note"]
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, show("-o", "table")[1].splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert "log end offset" in show("-o", "table", "--all")[1]


def test_a_broker_that_there_is_not(show: Run) -> None:
    refused = "lakelog: BrokerNotAvailableException: broker 9 is not registered; those that are: 1, 2\n"
    assert show("--broker-list", "1,9") == (1, "", refused)


@pytest.mark.parametrize("words", [["--broker-list", "1,x"], ["--broker-list", ""], ["-o", "csv"]])
def test_wrong_usage_is_status_2(show: Run, words: list[str]) -> None:
    status, out, err = show(*words)
    assert (status, out) == (2, "")
    assert "lakelog log-dirs --help` lists the options" in err


def test_log_dirs_without_an_action_is_status_2(lakelog: Run, world: World) -> None:
    assert lakelog(log_dirs, "--cluster", world.uri)[0] == 2


def test_sr_03_stray_replicas_are_shown_and_deleted_by_hand(show: Run, lakelog: Run, world: World) -> None:
    """Without --execute nothing is written, and what the metadata have stays."""
    log, gone = world.logs[1], TopicIdPartition("gone-id", 0)
    lead(log, gone, epoch=3)
    fill(log, gone, 3, epoch=3)
    log.become({gone: Role(3, LEADER).as_stray()}, "test")
    (row,) = [row for row in json.loads(show("-o", "json")[1]) if row["topic_id"] == "gone-id"]
    assert (row["role"], row["log_end_offset"]) == ("stray", 3)
    assert "no metadata explain it" in row["note"]

    def delete(*words: str) -> Run:
        return lakelog(log_dirs, "--cluster", world.uri, "--delete-stray", "-o", "json", *words)

    assert "--delete-stray needs --broker-list" in delete()[2]
    assert "does not go with --dry-run" in delete("--broker-list", "1", "--execute", "--dry-run")[2]
    for words, is_deleted in ((), False), (("--execute",), True):
        status, out, _ = delete("--broker-list", "1,2", *words)
        (row,) = json.loads(out)
        assert (status, row["topic_id"], row["log_end_offset"], row["deleted"]) == (0, "gone-id", 3, is_deleted)
        assert bool(log.refresh().known(gone).batches) != is_deleted
    assert log.refresh().known(P0).log_end_offset == 5
    assert json.loads(delete("--broker-list", "1", "--execute")[1]) == []


def test_sr_03_a_stray_replica_that_the_metadata_have_again_is_not_deleted(lakelog: Run, world: World) -> None:
    world.logs[1].become({P0: Role(0, LEADER).as_stray()}, "test")
    words = ("--cluster", world.uri, "--delete-stray", "--broker-list", "1", "--execute")
    status, _, err = lakelog(log_dirs, *words)
    assert (status, "broker 1 takes its replicas back when it runs" in err) == (1, True)
    assert world.logs[1].refresh().known(P0).log_end_offset == 5


def test_accept_cluster_root_lets_brokers_accept_an_older_copy(show: Run, lakelog: Run, world: World) -> None:
    """Without --execute nothing is written, and a broker that has nothing against the root keeps its note."""
    assert show("-o", "json")[0] == 0
    shutil.copytree(world.uri, f"{world.uri}.older")
    world.cluster.note_what_was_seen(world.roots[2])
    world.change(P0, isr=(1,), partition_epoch=1)
    Cluster.open(world.uri).note_what_was_seen(world.roots[1])
    shutil.rmtree(world.uri)
    Path(f"{world.uri}.older").rename(world.uri)

    def accept(*words: str) -> Run:
        return lakelog(log_dirs, "--cluster", world.uri, "--accept-cluster-root", "-o", "json", *words)

    assert "--accept-cluster-root needs --broker-list" in accept()[2]
    for words, is_accepted in ((), False), (("--execute",), True):
        status, out, err = accept("--broker-list", "1,2", *words)
        (row,) = json.loads(out)
        assert (status, row["broker"], row["accepted"]) == (0, 1, is_accepted)
        assert row["the_cluster_root"] == "is an older copy: metadata has version 1, and version 2 was seen"
        assert "records may be lost with them" in err
        assert "Broker 2 accepts the cluster root.\n" in err
        assert [root.exists("cluster-seen.json") for root in world.roots.values()] == [not is_accepted, True]
    Cluster.open(world.uri).expect_what_was_seen(world.roots[1])


def _belong_to_another(world: World) -> None:
    shutil.rmtree(world.roots[1].uri)
    format_broker(world.roots[1], "another", 1)


NOTES = {
    "agrees": (lambda world: world.cluster.note_what_was_seen(world.roots[1]), 0, "accepts the cluster root.\n"),
    "is not there": (
        lambda _: None, 0, "Broker 1 has noted nothing of a cluster root, and believes the one that it finds.\n",
    ),
    "is away": (
        lambda world: shutil.rmtree(world.roots[1].uri), 1,
        "The note of broker 1 cannot be read: InconsistentClusterIdException: there is no root of broker 1 at ",
    ),
    "is of another cluster's broker": (
        _belong_to_another, 1, "broker-1: belongs to broker 1 of cluster another, not to broker 1 of cluster ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("happens", "status", "told"), NOTES.values(), ids=NOTES)
def test_accept_cluster_root_reports_a_broker_that_does_not_refuse_it(
    lakelog: Run, world: World, waits: list[float], happens: Any, status: int, told: str
) -> None:
    assert waits == []
    happens(world)
    words = ("--accept-cluster-root", "--broker-list", 1, "--execute", "-o", "json")
    found, out, err = lakelog(log_dirs, "--cluster", world.uri, *words)
    assert (found, out, told in err) == (status, "[]\n", True), err


def test_an_unregistered_broker_is_refused_with_the_cluster_of_the_roots_beside_it(lakelog: Run, world: World) -> None:
    shutil.rmtree(world.uri)
    other = format_cluster(StorageRoot.of(world.uri), Config())
    refused = (
        "lakelog: BrokerNotAvailableException: broker 1 is not registered; those that are: none. "
        f"{world.uri} is the root of cluster {other}, and cluster {world.cluster.cluster_id} has its brokers' roots at "
        f"{world.roots[1].uri}, {world.roots[2].uri}\n"
    )
    for action in ("--accept-cluster-root", "--delete-stray"):
        assert lakelog(log_dirs, "--cluster", world.uri, action, "--broker-list", 1) == (1, "", refused)
