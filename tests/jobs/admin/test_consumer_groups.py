"""`lakelog consumer-groups` on real tables without running brokers: the tests write the replica rows."""

import datetime as dt
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakelog.jobs import consumer_groups
from lakelog.jobs.admin import heartbeats
from lakelog.jobs.consumer_groups import GroupsView
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.tables.group_tables import CommittedOffset, MemberTable
from tests.clients.world import World
from tests.clock import Clock
from tests.storage.logs import COLUMNS, NOON, P0, P1, TOPIC, request, send, start_at

Run = Any  # what a verb has answered: (status, stdout, stderr)
NOON_MS = int(NOON.timestamp() * 1000)


def append(world: World, partition: TopicIdPartition, sequence: int, *milliseconds: int) -> None:
    """One commit of records of two bytes, as late as that after noon."""
    times = [NOON + dt.timedelta(milliseconds=ms) for ms in milliseconds]
    rows = [{"key": b"k", "value": b"v", "timestamp": t, "headers": None} for t in times]
    table = pa.Table.from_pylist(rows, COLUMNS)
    send(world.logs[1], request(partition, len(times), sequence), tables={partition: table})


@pytest.fixture
def world(tmp_path: Path) -> World:
    """flights-0 has offsets 0 to 5 in two batches, the last is not committed; flights-1 has 0 and 1.

    The group g has committed offset 1 of flights-0.
    """
    world = World(str(tmp_path))
    append(world, P0, 0, 0, 1000, 2000)
    append(world, P0, 3, 3000, 4000, 5000)
    append(world, P1, 0, 100, 200)
    world.say(5)
    world.say(2, P1)
    world.consumer("g").commit({TOPIC: {0: 1}})
    return world


@pytest.fixture
def groups(lakelog: Run, world: World) -> Run:
    """Runs the verb on the cluster."""
    return lambda *words: lakelog(consumer_groups, "--cluster", world.uri, *words)


def rows(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run[1])
    return found


def committed(world: World, group: str = "g") -> dict[int, int]:
    return world.consumer(group).committed(TOPIC)


def test_list_prints_the_names_of_all_groups(groups: Run, world: World) -> None:
    world.consumer("another").commit({TOPIC: {1: 0}})
    assert groups("--list") == (0, "another\ng\n", "")
    assert rows(groups("--list", "-o", "json")) == [{"group": "another"}, {"group": "g"}]


def test_the_offsets_of_a_group_and_how_far_it_is_behind(groups: Run) -> None:
    """Four records are left; the first was sent 3 s before the newest. Of three records of 6 bytes two are left."""
    status, out, err = groups("--describe", "--group", "g")
    assert (status, err) == (0, "Consumer group 'g' has no active members.\n")
    assert [line.split() for line in out.splitlines()] == [
        [],
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
         "LAG-MS", "LAG-BYTES"],
        ["g", TOPIC, "0", "1", "5", "4", "-", "-", "-", "4000", "8"],
    ]  # fmt: skip


# The committed offset, and the lag in records, ms and bytes. The newest record of the last batch is not committed, so
# its time is taken for that of the newest committed one.
LAGS = {0: (5, 5000, 10), 1: (4, 4000, 8), 3: (2, 2000, 4), 4: (1, 1000, 2), 5: (0, 0, 0), 7: (-2, 0, 0)}


def test_lag_in_records_ms_and_bytes(groups: Run, world: World) -> None:
    for offset, lag in LAGS.items():
        world.consumer("g").commit({TOPIC: {0: offset}})
        (row,) = rows(groups("--describe", "--all-groups", "-o", "json"))
        assert (row["lag"], row["lag_ms"], row["lag_bytes"]) == lag, offset


def test_lag_below_the_log_start_counts_offsets_but_no_bytes_of_deleted_records(groups: Run, world: World) -> None:
    start_at(world.logs[1], P0, 4)
    (row,) = rows(groups("--describe", "--group", "g", "-o", "json"))
    assert (row["lag"], row["lag_ms"], row["lag_bytes"]) == (4, 1000, 4)


def test_a_partition_without_a_leader_is_named_and_the_others_are_shown(groups: Run, world: World) -> None:
    world.consumer("g").commit({TOPIC: {1: 1}})
    world.change(P0, leader=-1, leader_epoch=1)
    status, out, err = groups("--describe", "--group", "g")
    assert status == 1
    assert [line.split()[:6] for line in out.splitlines()[2:]] == [
        ["g", TOPIC, "0", "1", "-", "-"],
        ["g", TOPIC, "1", "1", "2", "1"],
    ]
    assert f"lakelog: LeaderNotAvailableException: {TOPIC}-0: no leader" in err


def test_offsets_of_a_topic_that_was_made_again_are_not_shown(groups: Run, world: World) -> None:
    world.cluster.groups.commit([CommittedOffset("old", TOPIC, "an-older-id", 0, 3)])
    assert rows(groups("--describe", "--group", "old", "-o", "json")) == []


def test_a_topic_that_is_made_again_meanwhile_gets_no_offsets_of_the_old_one(
    groups: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = GroupsView.ask
    monkeypatch.setattr(GroupsView, "ask", lambda *given: [world.make_again(9, 9), ask(*given)][1])
    status, out, err = groups("--group", "g", "--topic", TOPIC, "--reset-offsets", "--to-latest", "--execute")
    assert (status, out) == (1, "")
    assert "UnknownTopicIdException" in err
    assert committed(world) == {}


def test_an_unknown_group_is_refused(groups: Run) -> None:
    refused = "lakelog: GroupIdNotFoundException: no consumer group x; there are: g\n"
    for action in ("--describe", "--delete"):
        assert groups(action, "--group", "x") == (1, "", refused)


# The rule, and the new offset of flights-0, whose log starts at 0 and whose HW is 5; the group has committed 1.
RULES = {
    "--to-earliest": 0,
    "--to-latest": 5,
    "--to-current": 1,
    "--to-offset 3": 3,
    "--to-offset 77": 5,
    "--shift-by 2": 3,
    "--shift-by -9": 0,
    "--shift-by 9": 5,
    f"--to-datetime {(NOON + dt.timedelta(milliseconds=1500)).isoformat()}": 2,
    "--to-datetime 2026-01-01T12:00:02.001": 3,
    "--to-datetime 2026-01-01T13:00:03.001+01:00": 4,
    "--to-datetime 2036-01-01": 5,
    "--to-datetime 1869-01-01": 0,
    "--by-duration PT10S": 3,
    "--by-duration P1DT2H": 0,
    "--by-duration PT0.5S": 5,
}


def test_each_rule_stands_for_an_offset(groups: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_groups.time, "time", lambda: NOON_MS / 1000 + 12.5)
    for rule, offset in RULES.items():
        world.consumer("g").commit({TOPIC: {0: 1}})
        words = ("--reset-offsets", "--group", "g", "--topic", f"{TOPIC}:0", *rule.split(), "-o", "json")
        assert [row["new_offset"] for row in rows(groups(*words))] == [offset], rule
        assert committed(world) == {0: 1}, "without --execute nothing is written"
        assert rows(groups(*words, "--execute")) == [
            {"group": "g", "topic": TOPIC, "partition": 0, "new_offset": offset, "dry_run": False}
        ]
        assert committed(world) == {0: offset}


def test_a_reset_warns_of_an_offset_outside_the_log(groups: Run) -> None:
    status, out, err = groups("--reset-offsets", "--group", "g", "--topic", TOPIC, "--to-offset", 4)
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        [], ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], ["g", TOPIC, "0", "4"], ["g", TOPIC, "1", "2"],
    ]  # fmt: skip
    assert err == (
        f"lakelog: warning: new offset (4) is higher than latest offset for topic partition {TOPIC}-1: it becomes 2\n"
        "Nothing was written. This is what would be done; --execute does it.\n"
    )


def test_a_reset_of_all_topics_is_of_what_the_group_has_committed(groups: Run, world: World) -> None:
    status, *_ = groups("--reset-offsets", "--all-groups", "--all-topics", "--to-latest", "--execute")
    assert (status, committed(world)) == (0, {0: 5})


def test_a_new_group_can_be_given_offsets(groups: Run, world: World) -> None:
    groups("--reset-offsets", "--group", "new", "--topic", TOPIC, "--to-earliest", "--execute")
    assert committed(world, "new") == {0: 0, 1: 0}


def test_a_reset_is_of_all_partitions_or_none(groups: Run, world: World) -> None:
    """flights-1 has no committed offset that it could start from."""
    status, _, err = groups("--reset-offsets", "--group", "g", "--topic", TOPIC, "--shift-by", 1, "--execute")
    assert (status, committed(world)) == (1, {0: 1})
    assert f"InvalidRequestException: {TOPIC}-1: there is no committed offset that --shift-by could start from" in err


def test_offsets_are_exported_to_a_file_and_set_from_it(groups: Run, world: World, tmp_path: Path) -> None:
    world.consumer("another").commit({TOPIC: {1: 2}})
    every = ("--reset-offsets", "--all-groups", "--all-topics", "--to-current", "--export")
    assert groups(*every)[:2] == (0, f"another,{TOPIC},1,2\ng,{TOPIC},0,1\n")
    status, text, _ = groups("--reset-offsets", "--group", "g", "--all-topics", "--to-current", "--export")
    assert (status, text) == (0, f"{TOPIC},0,1\n")
    kept = tmp_path / "offsets.csv"
    kept.write_text(f"{TOPIC},0,3\n\n{TOPIC},1,77\n")
    status, text, err = groups("--reset-offsets", "--group", "g", "--from-file", kept, "--execute", "--export")
    assert (status, text) == (0, f"{TOPIC},0,3\n{TOPIC},1,2\n")
    assert "new offset (77) is higher than latest" in err
    assert committed(world) == {0: 3, 1: 2}
    kept.write_text(f"g,{TOPIC},0,0\nanother,{TOPIC},1,1\n")
    assert groups("--reset-offsets", "--all-groups", "--from-file", kept, "--execute")[0] == 0
    assert (committed(world), committed(world, "another")) == ({0: 0, 1: 2}, {1: 1})
    status, _, err = groups("--reset-offsets", "--group", "new", "--from-file", kept, "--execute")
    assert (status, f"{kept}: it has no offsets for group new" in err) == (1, True)
    kept.write_text(f"another,{TOPIC},1,0\n")
    status, _, err = groups("--reset-offsets", "--all-groups", "--from-file", kept, "--execute")
    assert (status, f"{kept}: it has no offsets for group g" in err) == (1, True)
    assert committed(world, "another") == {1: 1}, "no group is set"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty; allowed: topic,partition,offset or group,topic,partition,offset"),
        ("t,0\n", "line 1: 't,0'; allowed: topic,partition,offset"),
        ("t,0,1\nt,x,1\n", "line 2: 't,x,1'; allowed"),
        ("t,0,-1\n", "line 1: 't,0,-1'; allowed"),
        (f"t,0,{'9' * 5000}\n", "9'; allowed: topic,partition,offset"),
        ("topic,partition,offset\n", "such as orders,0,42"),
        (",0,1\n", "line 1: ',0,1'; allowed"),
        (",t,0,1\n", "line 1: ',t,0,1'; allowed"),
        ("t,0,1\ng,t,0,1\n", "some lines lack the group"),
        ("t,0,1\nt,0,2\n", "line 2: t-0 is given twice"),
        (None, "cannot be read: "),
    ],
)
def test_a_malformed_file_of_offsets_is_refused(groups: Run, tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "offsets.csv"
    if text is not None:
        file.write_text(text)
    status, _, err = groups("--reset-offsets", "--group", "g", "--from-file", file)
    assert status == 2
    assert words in err


def test_a_file_of_offsets_may_have_a_byte_order_mark_and_crlf(groups: Run, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_bytes(f"{TOPIC},0,3\r\n".encode("utf-8-sig"))
    run = groups("--reset-offsets", "--group", "g", "--from-file", file, "-o", "json")
    assert [(row["topic"], row["new_offset"]) for row in rows(run)] == [(TOPIC, 3)]


@pytest.mark.parametrize("chosen", [("--all-groups",), ("--group", "g", "--group", "another")])
def test_a_file_of_offsets_without_groups_is_refused_unless_one_group_is_named(
    groups: Run, world: World, tmp_path: Path, chosen: Any
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(f"{TOPIC},0,3\n")
    status, _, err = groups("--reset-offsets", *chosen, "--from-file", file, "--execute")
    assert (status, committed(world)) == (2, {0: 1})
    assert f"{file} names no groups, so it goes with one --group only" in err


def test_a_group_without_offsets_has_nothing_to_reset_or_export(groups: Run) -> None:
    status, out, err = groups("--reset-offsets", "--group", "new", "--all-topics", "--to-current", "--export")
    assert (status, out) == (1, "")
    assert "InvalidRequestException: group new has committed no offsets: name topics with --topic" in err


def test_offsets_of_a_topic_are_deleted(groups: Run, world: World) -> None:
    world.consumer("g").commit({TOPIC: {1: 2}})
    words = ("--delete-offsets", "--group", "g", "--topic", f"{TOPIC}:1")
    assert groups(*words, "--dry-run")[2] == "Nothing was written. This is what would be deleted.\n"
    assert committed(world) == {0: 1, 1: 2}
    assert groups(*words) == (0, "The offsets of 1 partitions were deleted for group g.\n", "")
    assert committed(world) == {0: 1}


def test_a_group_is_deleted(groups: Run, world: World) -> None:
    world.consumer("another").commit({TOPIC: {1: 0}})
    assert groups("--delete", "--group", "g", "--dry-run")[0] == 0
    assert committed(world) == {0: 1}
    assert groups("--delete", "--group", "g") == (
        0,
        "Deletion of requested consumer groups ('g') was successful.\n",
        "",
    )
    assert (committed(world), committed(world, "another")) == ({}, {1: 0})


@pytest.fixture
def member(world: World) -> Any:
    """A member that owns flights-0 and flights-1, whose heartbeat moves when the test says so."""
    consumer = Consumer(world.uri, "g", client_id="billing", session_timeout_ms=6000, heartbeat_interval_ms=2900)
    consumer.subscribe([TOPIC])
    consumer.poll(0)
    consumer._member._heartbeat.stop()
    yield consumer
    consumer.close()


def test_members_and_the_state_of_a_group(groups: Run, member: Any) -> None:
    (row,) = rows(groups("--describe", "--group", "g", "--members", "-o", "json"))
    assert row["consumer_id"] == member._member.membership.member_id
    assert (row["client_id"], row["partitions"], row["assignment"]) == ("billing", 2, f"{TOPIC}(0,1)")
    assert rows(groups("--describe", "--group", "g", "--state", "-o", "json")) == [
        {"group": "g", "assignment_strategy": "range", "state": "Stable", "generation": 1, "members": 1}
    ]
    status, out, err = groups("--describe", "--group", "g")
    assert (status, err) == (0, "")
    owners = [line.split()[3:9] for line in out.splitlines()[2:]]
    ids = [row["consumer_id"], row["host"], "billing"]
    assert owners == [["1", "5", "4", *ids], ["-", "2", "-", *ids]]
    heads = groups("--describe", "--all-groups", "--members")[1].split()[:5]
    assert heads == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]


def test_kip_345_a_static_member_is_shown_with_its_instance_id(groups: Run, world: World) -> None:
    for instance_id in ("first", ""):
        consumer = Consumer(world.uri, "static", client_id="c", group_instance_id=instance_id)
        consumer.subscribe([TOPIC])
        if not instance_id:
            status, out, err = groups("--describe", "--group", "static", "--members")
        consumer.close()
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()[1:]]
    assert lines[0] == ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    assert sorted((line[1].split("-")[0], line[2]) for line in lines[1:]) == [("c", "-"), ("first", "first")]
    status, out, _ = groups("--describe", "--group", "static", "--members", "--output", "json")
    assert [row["group_instance_id"] for row in json.loads(out)] == ["first"], "it has closed, and is still there"


def test_a_group_without_offsets_is_there_while_it_has_members(groups: Run, world: World) -> None:
    with Consumer(world.uri, "new") as consumer:
        consumer.subscribe([TOPIC])
        assert groups("--list")[1] == "g\nnew\n"
        member_table = MemberTable.open_if_there(world.cluster.root, "new")
    assert member_table is not None
    assert groups("--list")[1] == "g\n"


CHANGES = [
    ("--reset-offsets", "--topic", TOPIC, "--to-latest", "--execute"),
    ("--reset-offsets", "--topic", TOPIC, "--to-latest"),
    ("--delete-offsets", "--topic", TOPIC),
    ("--delete",),
]


def test_a_group_with_a_live_member_refuses_resets_and_deletions(
    groups: Run, world: World, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupsView.ensure_empty, "__defaults__", (lambda _: member._member.membership.beat(),))
    for words in CHANGES:
        status, out, err = groups(words[0], "--group", "g", *words[1:])
        assert (status, out) == (1, ""), words
        assert err.splitlines()[0] == "Group g has 1 members: looking for up to 6 s whether one is alive"
        assert "lakelog: GroupNotEmptyException: group g has live members (billing-" in err
        assert committed(world) == {0: 1}


def test_a_group_whose_members_have_died_can_be_reset_once_their_sessions_are_over(
    groups: Run, world: World, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(GroupAccess.__init__, "__defaults__", (clock,))

    def passes(_: float) -> None:
        clock.now += 2

    monkeypatch.setattr(GroupsView.ensure_empty, "__defaults__", (passes,))
    started = clock.now
    words = ("--reset-offsets", "--group", "g", "--topic", TOPIC, "--to-latest")
    assert groups(*words)[0] == 0
    assert (len(member._member.membership.table.read().members), committed(world)) == (1, {0: 1})
    assert groups(*words, "--execute")[0] == 0
    assert (member._member.membership.table.read().members, committed(world)) == ((), {0: 5, 1: 2})
    assert clock.now - started == 2 * 6


def test_members_that_have_died_are_not_shown(groups: Run, member: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(time=lambda: time.time() + 3600))
    monkeypatch.setattr(GroupsView.alive, "__defaults__", (waited.append,))
    status, out, err = groups("--describe", "--group", "g", "--state", "-o", "json")
    assert (status, json.loads(out)[0]["state"], waited) == (0, "Empty", [3])
    assert "No recent heartbeat from group g: looking again in 3 s" in err
    assert member.assignment(), "it does not know yet"
