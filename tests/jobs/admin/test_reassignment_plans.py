"""`lakelog reassign-partitions --drain`, `--rebalance` and `--replace`: what they print, write, refuse and do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs import configs, reassign_partitions
from lakelog.jobs.admin import planned_moves
from lakelog.jobs.admin.heartbeats import ALIVE, DEAD, SeenBroker
from lakelog.jobs.admin.planned_moves import (
    MoveInputs,
    PlannedMoves,
    planned_drain,
    planned_rebalance,
    planned_replacement,
)
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import InvalidRequestException, LeaderNotAvailableException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.reassignment_plan import Layout
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.tables.broker_table import BrokerTable
from tests.clients.world import World
from tests.jobs.admin.seen import beat
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, fill, lead

Run = Any  # what a verb has answered: (status, stdout, stderr)

DRAINED = {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3]},
                          {"topic": "t", "partition": 1, "replicas": [3, 1]}], "version": 1}  # fmt: skip


def replicas_of(admin: AdminClient) -> list[tuple[int, ...]]:
    return [r.replicas for r in admin.describe_topic("t").partitions]


def test_ra_01_a_drain_is_printed_and_changes_nothing(on_t: Run, admin: AdminClient) -> None:
    status, out, err = on_t(reassign_partitions, "--drain", "2", "--throttle", "1000")
    table = [line.split() for line in out.splitlines()]
    assert (status, table[2], table[3]) == (0, ["t-0", "1,", "2", "1,", "3", "0"], ["t-1", "2,", "3", "3,", "1", "0"])
    assert ["2", "2", "0", "1", "0", "0", "0"] in table
    assert "2 replicas of 2 partitions move, 0 bytes to copy." in out
    assert json.loads(out.splitlines()[-1]) == DRAINED
    assert "Note: broker 2 is not cordoned: `configs --add-config cordoned.log.dirs=*` keeps new replicas away" in err
    assert "Leaders after the moves: t-1 from broker 2 to broker 3\n" in err
    assert replicas_of(admin) == [(1, 2), (2, 3)]


def test_ra_01_a_plan_as_json_has_all_of_it(on_t: Run) -> None:
    found = json.loads(on_t(reassign_partitions, "--drain", "2", "--throttle", "10", "-o", "json")[1])
    assert (found["proposed"], found["replicas"], found["bytes"], found["seconds"]) == (DRAINED, 2, 0, 0.0)
    assert [p["replicas"] for p in found["current"]["partitions"]] == [[1, 2], [2, 3]]
    assert found["moves"][0] == {"partition": "t-0", "from": [1, 2], "to": [1, 3], "bytes": 0}
    assert found["brokers"][1] == {
        "broker": 2, "replicas_before": 2, "replicas_after": 0, "preferred_leaders_before": 1,
        "preferred_leaders_after": 0, "bytes_before": 0, "bytes_after": 0,
    }  # fmt: skip


def test_ra_01_a_plan_is_written_to_a_file_that_can_be_executed_and_verified(
    on_t: Run, admin: AdminClient, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    status, out, err = on_t(reassign_partitions, "--drain", "2", "--out", file)
    assert (status, json.loads(file.read_text()), "version" in out) == (0, DRAINED, False)
    assert f"{file}: is the plan; --execute and --verify take it as --reassignment-json-file" in err
    again, _, why = on_t(reassign_partitions, "--drain", "2", "--out", file)
    assert (again, f"--out: {file} is there already; give the plan another name" in why) == (2, True)
    assert on_t(reassign_partitions, "--execute", "--reassignment-json-file", file)[0] == 0
    assert on_t(reassign_partitions, "--verify", "--reassignment-json-file", file)[0] == 0
    assert replicas_of(admin) == [(1, 3, 2), (3, 1, 2)]


def test_ra_01_a_plan_is_executed_in_one_command(on_t: Run, admin: AdminClient, tmp_path: Path) -> None:
    words = ("--drain", "2", "--execute", "--throttle", "500", "--out")
    dry, out, err = on_t(reassign_partitions, *words, tmp_path / "dry.json", "--dry-run")
    assert (dry, (tmp_path / "dry.json").exists(), replicas_of(admin)) == (0, False, [(1, 2), (2, 3)])
    assert err.count("Leaders after the moves") == 1
    status, out, _ = on_t(reassign_partitions, *words, tmp_path / "plan.json", "-o", "json")
    found = json.loads(out)
    assert (status, found["plan"]["proposed"]) == (0, DRAINED)
    assert [(o["partition"], o["error"]) for o in found["outcomes"]] == [("t-0", None), ("t-1", None)]
    assert [p["replicas"] for p in found["current"]["partitions"]] == [[1, 2], [2, 3]]
    assert json.loads((tmp_path / "plan.json").read_text()) == DRAINED
    assert admin.describe_broker_configs()["3"]["leader.replication.throttled.rate"] == "500"
    status, out, _ = on_t(reassign_partitions, "--drain", "2", "--execute")
    assert (status, out) == (0, "Nothing has to move.\n"), "it can be given again, whatever has happened meanwhile"
    assert json.loads(on_t(reassign_partitions, "--drain", "2", "--execute", "-o", "json")[1])["outcomes"] == []


def test_ra_01_a_plan_of_more_partitions_than_a_request_may_have_is_sent_in_parts(
    on_t: Run, admin: AdminClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be refused as a whole, once the throttles are set."""
    (tmp_path / "client.properties").write_text("lakelog.max.partitions.per.request=1")
    sent, plain = [], AdminClient.alter_partition_reassignments

    def alter(client: AdminClient, wanted: dict[tuple[str, int], Any], **options: bool) -> Any:
        sent.append(list(wanted))
        return plain(client, wanted, **options)

    monkeypatch.setattr(AdminClient, "alter_partition_reassignments", alter)
    words = ("--drain", "2", "--execute", "--command-config", tmp_path / "client.properties", "-o", "json")
    status, out, _ = on_t(reassign_partitions, *words)
    assert (status, sent) == (0, [[("t", 0)], [("t", 1)]])
    assert [o["partition"] for o in json.loads(out)["outcomes"]] == ["t-0", "t-1"]
    assert replicas_of(admin) == [(1, 3, 2), (3, 1, 2)]


def test_ra_01_a_drain_does_not_go_to_cordoned_brokers(on_t: Run) -> None:
    of_3 = ("--entity-type", "brokers", "--entity-name", "3", "--alter", "--add-config", "cordoned.log.dirs=*")
    assert on_t(configs, *of_3)[0] == 0
    status, out, err = on_t(reassign_partitions, "--drain", "2", "--execute")
    assert (status, out) == (1, "")
    assert "t-0: 1 of its 2 replicas must move, and too few other brokers are alive, not cordoned and not " in err
    assert on_t(reassign_partitions, "--drain", "3")[0] == 0
    assert "Note: broker 3 is cordoned, so it is left out.\n" in on_t(reassign_partitions, "--rebalance")[2]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--drain", "9"], "BrokerNotAvailableException: --drain: broker 9 has not registered; there are: 1, 2, 3"),
        (["--drain", "1,2,3"], "InvalidReplicationFactorException: t-0: 2 of its 2 replicas must move, and "),
        (["--replace", "2=9"], "BrokerNotAvailableException: --replace: broker 9 has not registered; there are: 1, 2"),
        (["--replace", "9=2"], "BrokerNotAvailableException: --replace: broker 9 has not registered; there are: 1, 2"),
        (["--replace", "2=3"], "InvalidReplicaAssignmentException: --replace 2=3: broker 3 has replicas of t-1 al"),
    ],
)  # fmt: skip
def test_ra_01_a_plan_that_cannot_be_is_refused_in_a_sentence(
    on_t: Run, admin: AdminClient, words: list[str], error: str
) -> None:
    status, out, err = on_t(reassign_partitions, *words, "--execute")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"lakelog: {error}")
    assert admin.list_partition_reassignments() == []


def test_ra_01_a_replacement_keeps_the_places_of_replicas(on_t: Run, admin: AdminClient) -> None:
    admin.alter_partition_reassignments({("t", 1): [2]})
    status, out, _ = on_t(reassign_partitions, "--replace", "2=3", "-o", "json")
    assert (status, [m["to"] for m in json.loads(out)["moves"]]) == (0, [[1, 3], [3]])


def test_ra_01_a_dead_broker_is_waited_for_once(lakelog: Run, tmp_path: Path, waits: list[float]) -> None:
    world = World(str(tmp_path))
    BrokerTable.open_or_create(world.cluster.root, 3).register(lambda _: seen(3).registration)
    for broker, ago in ((1, 1.0), (2, 60.0), (3, 1.0)):
        beat(world.uri, broker, ago)
    status, out, _ = lakelog(reassign_partitions, "--cluster", world.uri, "--replace", "2=3", "-o", "json")
    assert (status, [m["to"] for m in json.loads(out)["moves"]], len(waits)) == (0, [[1, 3], [1, 3]], 1)


def seen(number: int, state: str = ALIVE, rack: str | None = None) -> SeenBroker:
    row = BrokerRegistration(number, f"/{number}", rack, 1, -1, False, None, "id", 0)
    return SeenBroker(row, state, 1.0)


def inputs(*registrations: PartitionRegistration, dead: tuple[int, ...] = (), **sizes: int) -> MoveInputs:
    """Brokers 1 to 4, of which some are dead."""
    found = {(r.topic, r.partition): r for r in registrations}
    brokers = {n: seen(n, DEAD if n in dead else ALIVE) for n in (1, 2, 3, 4)}
    replicas = {key: r.replicas for key, r in found.items()}
    known = {("t", int(name[1:])): size for name, size in sizes.items()}
    layout = Layout(replicas, dict.fromkeys(brokers), frozenset(brokers) - set(dead), known)
    return MoveInputs(layout, found, brokers, {})


ROW = PartitionRegistration("t", "t-id", 0, (1, 2), 1, 0, (1, 2))


@pytest.mark.parametrize("rebalances", [False, True])
def test_ra_01_a_partition_that_moves_already_is_not_planned_for(rebalances: bool) -> None:
    moving = inputs(replace(ROW, replicas=(1, 2, 3), adding_replicas=(2,), removing_replicas=(3,)))
    with pytest.raises(InvalidRequestException, match="a reassignment of t-0 is under way: plan again once"):
        planned_rebalance(moving) if rebalances else planned_drain(moving, [1])


def test_ra_01_what_has_no_leader_cannot_be_copied() -> None:
    """Broker 1 is dead, and was the only one in sync: its replicas are not given up."""
    of = inputs(replace(ROW, leader=-1, isr=(1,)), replace(ROW, partition=1, leader=2, isr=(2,)), dead=(1,))
    with pytest.raises(LeaderNotAvailableException) as caught:
        planned_drain(of, [1])
    assert str(caught.value) == (
        "no leader, so nobody can copy t-0: start broker 1, last in sync, or elect another replica by "
        "`leader-election --election-type unclean`, which loses records"
    )


def test_ra_01_a_dead_broker_whose_replicas_have_other_leaders_is_drained() -> None:
    moves = planned_drain(inputs(replace(ROW, leader=2, isr=(2,)), dead=(1,), p0=70), [1])
    assert (moves.plan, moves.bytes_copied) == ({("t", 0): (3, 2)}, 70)


def test_ra_01_a_broker_that_has_replicas_and_no_registration_is_drained() -> None:
    assert planned_drain(inputs(replace(ROW, replicas=(1, 9), isr=(1,))), [9]).plan == {("t", 0): (1, 2)}


def test_th_02_the_time_is_that_of_the_broker_with_the_most_to_copy() -> None:
    """Broker 3 sends both partitions, and brokers 2 and 4 receive one each."""
    three = (replace(ROW, replicas=(1, 3), leader=3), replace(ROW, partition=1, replicas=(3, 1), leader=3))
    moves = planned_drain(inputs(*three, p0=500, p1=400), [1])
    assert (sorted(len(r) for r in moves.plan.values()), moves.busiest()) == ([2, 2], (900, "broker 3 sends"))
    assert moves.summary(10)[-1] == "At 10 B/s a broker, the copies take 90 s or more: broker 3 sends 900 bytes."
    assert moves.summary(None) == ["2 replicas of 2 partitions move, 900 bytes to copy."]


def test_tm_02_fewer_racks_and_unknown_sizes_are_told() -> None:
    found = inputs(ROW)
    racks = {1: "a", 2: "b", 3: "b", 4: "b"}
    moves = planned_drain(found._replace(layout=replace(found.layout, racks=racks), unread={4: "gone"}), [1])
    assert moves.notes()[:3] == [
        "on fewer racks than before, as no broker is left on another one: t-0",
        "sizes that are not known count as 0: t-0",
        "the log of broker 4 cannot be read: gone",
    ]


def test_tm_02_a_dead_broker_without_a_rack_does_not_let_a_drain_ignore_racks() -> None:
    """`recover` does not know the racks of brokers that have not come back."""
    found = inputs(replace(ROW, leader=2, isr=(2,)), dead=(1,), p0=1)
    racked = found._replace(layout=replace(found.layout, racks={1: None, 2: "b", 3: "b", 4: "a"}))
    moves = planned_drain(racked, [1])
    assert (moves.plan, moves.notes()) == ({("t", 0): (4, 2)}, [])


def test_tm_02_a_replacement_on_a_rack_of_theirs_is_told() -> None:
    """A drain would take broker 4, on another rack. Nobody has to cordon a broker that is dead."""
    found = inputs(replace(ROW, leader=2, isr=(2,)), dead=(1,), p0=1)
    racked = found._replace(layout=replace(found.layout, racks={1: "a", 2: "b", 3: "b", 4: "a"}))
    told = planned_replacement(racked, 1, 3).notes()
    assert told == ["on fewer racks than before, as the new broker is on a rack of theirs: t-0"]
    assert planned_drain(racked, [1]).notes() == []


def test_ra_01_leaders_that_alone_change_are_counted() -> None:
    rows = [replace(ROW, partition=number) for number in range(2)]
    moves: PlannedMoves = planned_rebalance(inputs(*rows, dead=(3, 4)))
    assert moves.summary(5)[:2] == [
        "0 replicas of 1 partition move, 0 bytes to copy.",
        "1 partition gets another preferred leader alone.",
    ]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Brokers 1 and 2, whose logs can be read, count as alive."""

    def observed(found: Cluster) -> dict[int, SeenBroker]:
        return {broker: SeenBroker(row, ALIVE, 1.0) for broker, row in found.refresh_brokers().items()}

    monkeypatch.setattr(planned_moves, "observe_brokers", observed)
    return World(str(tmp_path))


def test_sizes_are_those_of_the_leaders_logs(world: World) -> None:
    """A follower may have more, such as records that it has yet to truncate."""
    fill(world.logs[1], P0, 50, epoch=0)
    fill(world.logs[1], P1, 5, epoch=0)
    lead(world.logs[2], P1, epoch=0)
    fill(world.logs[2], P1, 500, epoch=0)
    sizes = MoveInputs.read(world.cluster).layout.sizes
    assert sizes[TOPIC, 0] > sizes[TOPIC, 1] > 0


def test_li_01_the_root_of_another_broker_gives_no_sizes(world: World) -> None:
    BrokerTable.open(world.cluster.root, 2).heartbeat(1, "test", root=world.roots[1].uri)
    assert MoveInputs.read(world.cluster).unread.keys() == {2}


def test_td_05_a_topic_that_is_being_deleted_is_left_out(world: World) -> None:
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, deleting=True)], (), {"who": "test"})
    assert MoveInputs.read(world.cluster).layout.replicas == {}
