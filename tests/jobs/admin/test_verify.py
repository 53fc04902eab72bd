"""`lakelog verify` on real roots without running brokers: the tests write the logs, the rows and the heartbeats."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakelog.jobs import verify
from lakelog.jobs.admin import replica_check, replica_repair
from lakelog.jobs.admin.heartbeats import observe_brokers
from lakelog.jobs.cli.options import Invocation
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, NO_REPAIR, STOPPED, PlacedBatch, Role
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.log.log_state import LogChange
from lakelog.replication.storage.log.record_digest import record_digest
from lakelog.replication.storage.log.repair import repair_logs
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import record_bytes, write_segment
from tests.clients.world import World
from tests.jobs.admin.seen import beat, living_world
from tests.storage.logs import P0, P1, fill, log_rows, replicate, request, send, truncate

Run = Any  # what a verb has answered: (status, stdout, stderr)
Act = Callable[[World], object]
DEPTHS = ("state", "files", "records")


@pytest.fixture
def world(tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> World:
    """flights-0 has offsets 0-1, 2-3 and 4-5, flights-1 has 0-2, each batch in a file; broker 1 leads both, and broker
    2 has all of it. All is committed."""
    monkeypatch.setattr(replica_check, "AGAIN_SECONDS", 0.0)
    world = living_world(tmp_path)
    fill(world.logs[1], P0, 2, 2, 2)
    fill(world.logs[1], P1, 3)
    for partition, end in ((P0, 6), (P1, 3)):
        replicate(world.logs[1], world.logs[2], partition)
        world.say(end, partition)
        world.say(end, partition, broker=2, lag=0)
    assert waits == []
    return world


@pytest.fixture
def check(lakelog: Run, world: World) -> Run:
    return lambda *words: lakelog(verify, "--cluster", world.uri, *words)


@pytest.fixture
def found(check: Run) -> Callable[..., Any]:
    """Status, and each finding: kind, broker, partitions with offsets."""

    def call(*words: object) -> Any:
        status, out, _ = check("-o", "json", *words)
        told = json.loads(out)
        assert told["ok"] == (status == 0)
        return status, [
            (
                each["kind"],
                each["broker"],
                [(p["partition"], p["first_offset"], p["last_offset"]) for p in each["partitions"]],
            )
            for each in told["findings"]
        ]

    return call


def placed(world: World, broker: int, number: int = 1, partition: TopicIdPartition = P0) -> PlacedBatch:
    return world.logs[broker].refresh().known(partition).batches[number]


def file_of(world: World, broker: int, number: int = 1, partition: TopicIdPartition = P0) -> Path:
    return Path(world.logs[broker].root.path(placed(world, broker, number, partition).segment))


def lose(broker: int, number: int = 1) -> Act:
    return lambda world: file_of(world, broker, number).unlink()


def lengthen(world: World) -> None:
    with file_of(world, 2).open("ab") as file:
        file.write(b"x")


def rot(broker: int, number: int = 1) -> Act:
    """Flips a bit of the first page: the footer, with the headers, stays whole."""

    def act(world: World) -> None:
        path = file_of(world, broker, number)
        content = bytearray(path.read_bytes())
        content[20] ^= 1
        path.write_bytes(content)

    return act


def put_in_place(world: World, number: int, header: BatchHeader, rows: pa.Table) -> None:
    """Replaces the file of a batch of broker 2 by another one, as if it had been written so."""
    log = world.logs[2]
    before = log.refresh().segments[placed(world, 2, number).segment]
    log.transact({"why": "test"}, lambda _: LogChange((write_segment(log.root, 1, rows, [header]),), (before,)))


def rows_like(header: BatchHeader, value: bytes) -> pa.Table:
    rows = log_rows(P0, header.base_offset, header.records, header.leader_epoch)
    values = pa.array([value] * rows.num_rows, rows.schema.field("value").type)
    return rows.set_column(rows.schema.get_field_index("value"), rows.schema.field("value"), values)


def _with_facts(header: BatchHeader, rows: pa.Table) -> BatchHeader:
    size, newest = pc.sum(record_bytes(rows)).as_py(), pc.max(rows["timestamp"]).value
    return replace(header, digest=record_digest(rows), bytes=size, max_timestamp=newest)


def write_other_records(world: World) -> None:
    """The bytes are those that were committed, and are not what the header says."""
    header = placed(world, 2).header
    put_in_place(world, 1, header, rows_like(header, b"7"))


def write_another_batch(world: World) -> None:
    """The last batch is another one: with its own right digest, and its own right chain."""
    before = placed(world, 2, 2).header
    rows = rows_like(before, b"other")
    put_in_place(world, 2, linked(_with_facts(before, rows), before.previous), rows)
    world.say(6, broker=2, lag=0)


def leave_a_gap(world: World) -> None:
    log, last = world.logs[2], placed(world, 2, 2).header
    rows = log_rows(P0, 9, 1)
    header = linked(_with_facts(BatchHeader("flights", P0.topic_id, 0, 0, 9, 9, 0, 0), rows), last.chain)
    log._log.move()
    log._log.commit({"why": "test"}, [write_segment(log.root, 1, rows, [header]).file])


def be_behind(world: World) -> None:
    truncate(world.logs[2], {P0: 2})
    world.say(2, broker=2, lag=4)


def be_behind_and_out_of_sync(world: World) -> None:
    be_behind(world)
    world.change(isr=(1,), partition_epoch=1)


def differ_out_of_sync(world: World) -> None:
    """As an old leader that is yet to truncate its log."""
    write_another_batch(world)
    world.change(isr=(1,), partition_epoch=1, leader_epoch=1)


def lead_without_all_records(world: World) -> None:
    """The leader has lost its end, and with it its high watermark: only its follower knows of both."""
    truncate(world.logs[1], {P0: 2})
    world.say(2)


def claim_more(world: World) -> None:
    world.say(3, P1, broker=2, lag=0, log_end_offset=9)


def lose_root(world: World) -> None:
    shutil.rmtree(world.roots[2].uri)


SECOND = ("flights-0", 2, 3)
CASES: dict[str, tuple[Act, tuple[list[Any], list[Any], list[Any]]]] = {
    "all is well": (lambda _: None, ([], [], [])),
    "a file of a follower is gone": (lose(2), ([("file", 2, [("flights-0", 0, None)])],) * 3),
    "a file of a follower is too long": (lengthen, ([("file", 2, [("flights-0", 0, None)])],) * 3),
    "a bit of a follower has flipped": (rot(2), ([], *([("file", 2, [SECOND])],) * 2)),
    "a bit of a leader has flipped": (rot(1), ([], *([("file", 1, [SECOND])],) * 2)),
    "records do not have the digest of their batch": (write_other_records, ([], [], [("records", 2, [SECOND])])),
    "another record, with a right digest": (write_another_batch, ([("differs", 2, [("flights-0", 4, 5)])],) * 3),
    "a gap": (leave_a_gap, ([("log", 2, [("flights-0", 4, 9)])],) * 3),
    "in sync, without all records": (be_behind, ([("incomplete", 2, [("flights-0", 2, 5)])],) * 3),
    "the leader, without all records": (lead_without_all_records, ([("incomplete", 1, [("flights-0", 2, 5)])],) * 3),
    "behind, and not in sync": (be_behind_and_out_of_sync, ([], [], [])),
    "other records that it is yet to truncate": (differ_out_of_sync, ([], [], [])),
    "a row claims too much": (claim_more, ([("row", 2, [("flights-1", 3, 8)])],) * 3),
    "a root cannot be read": (lose_root, ([("root", 2, [("flights-0", 0, None), ("flights-1", 0, None)])],) * 3),
}  # fmt: skip


@pytest.mark.parametrize(("happens", "expected"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_found_at_the_depth_that_shows_it(
    found: Any, world: World, happens: Act, expected: tuple[list[Any], ...]
) -> None:
    happens(world)
    for depth, wrong in zip(DEPTHS, expected, strict=True):
        assert found("--depth", depth) == (int(bool(wrong)), wrong), depth


def test_a_finding_is_a_sentence_with_partition_broker_offsets_file_and_what_to_do(check: Run, world: World) -> None:
    rot(2)(world)
    status, out, _ = check("--depth", "files")
    path, size = file_of(world, 2), file_of(world, 2).stat().st_size
    assert status == 1
    assert "Problems: 1\n" in out
    assert (
        f"- the copy of flights-0 (offsets 2 to 3) on broker 2: {path}: its {size} bytes are not the {size} bytes"
        in out
    )
    repair = f"`lakelog verify --cluster {world.uri} --depth files --repair`"
    assert f"  To do: {repair} lets broker 2 fetch it again from its leader." in out


def test_what_was_checked_is_counted(check: Run, world: World) -> None:
    status, out, _ = check("--depth", "records", "-o", "json")
    told = json.loads(out)
    sizes = {b: sum(s.file.size for s in world.logs[b].refresh().segments.values()) for b in (1, 2)}
    counts = {"state": "alive", "replicas": 2, "files": 4, "records": 9}
    assert (status, told["partitions"], told["depth"]) == (0, 2, "records")
    assert told["brokers"] == [{"broker": broker, **counts, "bytes": sizes[broker]} for broker in (1, 2)]
    out = check()[1]
    assert "Nothing is wrong: all replicas have the same records below the high watermark." in out


def test_a_follower_that_is_behind_is_named_and_nothing_is_wrong(check: Run, world: World) -> None:
    be_behind_and_out_of_sync(world)
    status, out, _ = check()
    assert (status, "Not in sync, and behind: flights-0 on broker 2." in out) == (0, True)


def test_one_topic_leaves_out_the_files_of_others(found: Any, world: World) -> None:
    rot(2)(world)
    world.make_again(0)
    assert found("--depth", "files", "--topic", "flights") == (0, [])
    assert found("--depth", "files")[0] == 1


def test_a_topic_that_is_deleted_meanwhile_is_no_finding(
    check: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(2)(world)

    def delete(_: float) -> None:
        world.cluster.topics.change((), ["flights"], {"who": "test"})
        world.cluster.metadata.change(lambda _: {P0: None, P1: None}, {"who": "test"})

    monkeypatch.setattr(replica_check, "let_pass", delete)
    status, out, _ = check("-o", "json")
    assert (status, json.loads(out)["findings"], json.loads(out)["deleted"]) == (0, [], ["flights"])


def test_a_replica_that_has_caught_up_meanwhile_is_no_finding(
    check: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_behind(world)
    monkeypatch.setattr(replica_check, "let_pass", lambda _: replicate(world.logs[1], world.logs[2]))
    assert check("-o", "json")[0] == 0


@pytest.mark.parametrize("happens", [lose_root, lose(2)], ids=["a root", "a file"])
def test_what_cannot_be_read_the_second_time_has_not_been_checked(
    check: Run, world: World, monkeypatch: pytest.MonkeyPatch, happens: Act
) -> None:
    claim_more(world)

    def heal_one_and_break_another(_: float) -> None:
        world.say(3, P1, broker=2, lag=0)
        happens(world)

    monkeypatch.setattr(replica_check, "let_pass", heal_one_and_break_another)
    status, out, _ = check("--depth", "files", "-o", "json")
    assert (status, [each["broker"] for each in json.loads(out)["findings"]]) == (1, [2])


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--topic", "planes"), "UnknownTopicOrPartitionException: no topic planes; there are: flights"),
        (("--topic", "planes", "-o", "json"), "no topic planes"),
    ],
)
def test_an_unknown_topic_is_refused(check: Run, words: tuple[str, ...], refused: str) -> None:
    status, out, err = check(*words)
    assert (status, refused in out + err) == (1, True)


# Repairs


class Broker:
    """Broker 2 at the least that it does with a note: it leaves the ISR, truncates, fetches again and joins."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.truncated_at, self.is_away = world, list[int](), False
        monkeypatch.setattr(replica_repair, "let_pass", self.work)

    def work(self, _: float) -> None:
        log = self.world.logs[2]
        for partition in sorted(log.refresh().to_repair) if not self.is_away else ():
            self.truncated_at.append(log.refresh().known(partition).repair_from)
            registration = self.world.partitions[partition]
            self.world.change(partition, isr=(1,), partition_epoch=registration.partition_epoch + 1)
            repair_logs(log, {partition: 0}, "test")
            replicate(self.world.logs[1], log, partition)
            end = self.world.logs[1].refresh().known(partition).log_end_offset
            self.world.say(end, partition, broker=2, lag=0)
            self.world.change(partition, isr=(1, 2), partition_epoch=registration.partition_epoch + 2)


@pytest.fixture
def broker(world: World, monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(world, monkeypatch)


def notes(world: World) -> dict[int, set[TopicIdPartition]]:
    return {broker: set(ReplicaLog.open(log.root).current().to_repair) for broker, log in world.logs.items()}


NO_NOTES: dict[int, set[TopicIdPartition]] = {1: set(), 2: set()}
REPAIRABLE: dict[str, tuple[Act, list[int]]] = {
    "a file of a follower is gone": (lose(2), [0]),
    "a bit of a follower has flipped": (rot(2), [2]),
    "two files of a follower have rotted": (lambda world: [rot(2, 2)(world), rot(2, 1)(world)], [2]),
    "records do not have the digest of their batch": (write_other_records, [2]),
    "another record, with a right digest": (write_another_batch, [4]),
    "a gap": (leave_a_gap, [4]),
    "in sync, without all records": (be_behind, [2]),
}


@pytest.mark.parametrize(("happens", "offsets"), REPAIRABLE.values(), ids=REPAIRABLE)
def test_a_follower_is_repaired_from_the_first_wrong_offset_on(
    check: Run, found: Any, world: World, broker: Broker, happens: Act, offsets: list[int]
) -> None:
    happens(world)
    status, out, _ = check("--depth", "records", "--repair", "--yes", "-o", "json")
    (repair,) = json.loads(out)["repairs"]
    assert repair == {
        "partition": "flights-0", "broker": 2, "from_offset": offsets[0], "leader": 1, "state": "repaired", "why": None,
    }  # fmt: skip
    assert (status, broker.truncated_at, notes(world)) == (0, offsets, NO_NOTES)
    assert found("--depth", "records") == (0, [])
    assert world.logs[1].read(P0, 0).equals(world.logs[2].read(P0, 0))


def lead_with_a_dead_broker(world: World) -> None:
    rot(2)(world)
    beat(world.uri, 1, 312.0)


def follow_with_a_dead_broker(world: World) -> None:
    rot(2)(world)
    beat(world.uri, 2, 312.0)


def share_a_file_with_a_leader(world: World) -> None:
    """Broker 2 leads flights-1, of which the rotten file has records, too."""
    send(world.logs[1], request(P0, 2, 6), request(P1, 2, 3))
    replicate(world.logs[1], world.logs[2], P0)
    for partition, end in ((P0, 8), (P1, 5)):
        world.say(end, partition)
        world.say(end, partition, broker=2, lag=0)
    rot(2, 3)(world)
    world.change(P1, leader=2, leader_epoch=1, partition_epoch=1)


REFUSED: dict[str, tuple[Act, str]] = {
    "it leads": (
        rot(1), "broker 1 leads flights-0, and no leader is repaired: stop it in order, so that broker 2 leads",
    ),
    "it is the last one in sync": (
        lambda world: [rot(1)(world), world.change(isr=(1,), partition_epoch=1)],
        "broker 1 leads flights-0 as its last replica in sync, so that no other copy counts",
    ),
    "the leader's copy is wrong, too": (
        lambda world: [rot(2)(world), rot(1, 2)(world)],
        "the copy of its leader, broker 1, is not proved to be right: see to that one first",
    ),
    "nobody leads": (
        lambda world: [rot(2)(world), world.change(leader=-1, leader_epoch=1)], "flights-0 has no leader to fetch from",
    ),
    "the leader has not taken up its role": (
        lambda world: [rot(2)(world), world.change(leader_epoch=1)],
        "broker 1 has not taken up its leadership of flights-0 yet: run this again",
    ),
    "the leader is dead": (lead_with_a_dead_broker, "nothing proves the copy of its leader right, as broker 1 is not"),
    "its broker is dead": (follow_with_a_dead_broker, "broker 2 is not at work (dead): start it, then run this again"),
    "a file has records that its broker leads": (share_a_file_with_a_leader, "broker 2 leads flights-1"),
    "its root cannot be read": (lose_root, "make "),
    "a row claims too much": (claim_more, "broker 2 publishes its rows anew by itself"),
}  # fmt: skip


@pytest.mark.parametrize(("happens", "why"), REFUSED.values(), ids=REFUSED)
def test_what_may_be_the_only_right_copy_is_left_alone_and_it_says_why(
    check: Run, world: World, broker: Broker, happens: Act, why: str
) -> None:
    happens(world)
    files = {path for log in world.logs.values() for path in Path(log.root.uri).rglob("*")}
    status, out, _ = check("--depth", "records", "--repair", "--yes", "-o", "json")
    told = json.loads(out)
    assert (status, told["repairs"], broker.truncated_at) == (1, [], [])
    assert any(why in each["do"] for each in told["findings"])
    assert not any(each["repairable"] for each in told["findings"])
    assert {path for log in world.logs.values() for path in Path(log.root.uri).rglob("*")} == files


def test_two_followers_that_differ_from_their_leader_leave_open_who_is_right(world: World) -> None:
    """Broker 3 stands for a second follower, whose finding is that of broker 2."""
    write_another_batch(world)
    invocation = Invocation.of(world.uri, world.uri, None)
    wanted = {P0, P1}
    seen = replica_check.check_replicas(world.cluster, observe_brokers(world.cluster), wanted, "records")
    (wrong,) = seen.wrong
    assert [repair.broker for repair in replica_repair.RepairPlan(seen, invocation).repairs] == [2]
    both = seen._replace(wrong=[wrong, wrong._replace(broker=3)], brokers={**seen.brokers, 3: seen.brokers[2]})
    plan = replica_repair.RepairPlan(both, invocation)
    assert plan.repairs == []
    assert {why.partition(":")[0] for why in plan.hindrances.values()} == {
        "brokers 2 and 3 differ from broker 1, the leader of flights-0, so that nothing proves it right"
    }


def test_what_is_wrong_besides_keeps_a_replica_from_being_repaired(check: Run, world: World, broker: Broker) -> None:
    """Truncation would rewrite the rotten file, and take a partition offline that its broker leads."""
    share_a_file_with_a_leader(world)
    rot(2, 1)(world)
    status, out, _ = check("--repair", "--yes", "-o", "json")
    assert (status, json.loads(out)["repairs"], notes(world), broker.truncated_at) == (1, [], NO_NOTES, [])


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(check: Run, world: World) -> None:
    rot(2)(world)
    status, out, err = check("--repair", "--dry-run", "-o", "json")
    (repair,) = json.loads(out)["repairs"]
    assert (status, repair["state"], repair["from_offset"]) == (1, "would be repaired", 2)
    assert ("Nothing was written.\n" in err, notes(world)) == (True, NO_NOTES)


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_a_person_is_asked_and_told_what_it_costs(
    check: Run, world: World, broker: Broker, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    rot(2)(world)
    topics = world.cluster.topics.topics
    world.cluster.topics.change([replace(topics["flights"], configs={"min.insync.replicas": "2"})], (), {"who": "test"})
    monkeypatch.setattr(verify, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", StringIO(answer))
    code, _, err = check("--repair")
    assert code == status
    assert "broker 2 fetches flights-0 again from broker 1, offset 2 on.\n" in err
    assert "Until they are in sync again, sends with acks=all fail to flights-0.\n" in err
    assert "Repair 1 replica? [y/N] " in err
    assert bool(broker.truncated_at) == (status == 0)


def test_a_repair_that_takes_longer_goes_on_without_the_command(check: Run, world: World, broker: Broker) -> None:
    rot(2)(world)
    broker.is_away = True
    status, out, _ = check("--repair", "--yes", "--timeout", 0, "-o", "json")
    told = json.loads(out)
    assert (status, told["repairs"][0]["state"]) == (1, "under way")
    assert told["findings"][0]["do"] == "broker 2 goes on by itself; run `lakelog verify` again"
    assert notes(world) == {1: set(), 2: {P0}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"leader": 2, "leader_epoch": 1}, "flights-0 has another leader by now: run this again"),
        ({"leader_epoch": 1}, "flights-0 has another leader by now: run this again"),
    ],
)
def test_a_leader_that_was_not_proved_ends_a_repair(
    check: Run, world: World, broker: Broker, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], why: str
) -> None:
    rot(2)(world)
    real = verify.carry_out_repairs

    def carry_out(*arguments: Any) -> Any:
        world.change(partition_epoch=1, **change)
        return real(*arguments)

    monkeypatch.setattr(verify, "carry_out_repairs", carry_out)
    status, out, _ = check("--repair", "--yes", "-o", "json")
    (repair,) = json.loads(out)["repairs"]
    assert (status, repair["state"], repair["why"]) == (1, "refused", why)
    assert (notes(world), world.logs[2].refresh().known(P0).repair_from) == (NO_NOTES, NO_REPAIR)
    assert broker.truncated_at == []


def lead_broker_2(world: World) -> None:
    world.change(leader=2, leader_epoch=1, partition_epoch=1)
    world.logs[1].become({P0: Role(1, FOLLOWER)}, "test")
    world.logs[2].become({P0: Role(1, LEADER)}, "test")


def delete_the_topic(world: World) -> None:
    world.cluster.topics.change((), ["flights"], {"who": "test"})
    world.cluster.metadata.change(lambda _: {P0: None, P1: None}, {"who": "test"})
    world.logs[2].become({P0: Role(1, STOPPED)}, "test")


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lead_broker_2, "broker 2 leads flights-0 by now, and no leader is repaired: run this again"),
        (delete_the_topic, "flights-0 was deleted meanwhile"),
    ],
)
def test_a_note_that_goes_without_a_repair_ends_it(
    check: Run, world: World, monkeypatch: pytest.MonkeyPatch, happens: Act, why: str
) -> None:
    rot(2)(world)
    passed = list[float]()

    def happen_once(seconds: float) -> None:
        if not passed:
            happens(world)
        assert len(passed) < 9, "it waits for ever"
        passed.append(seconds)

    monkeypatch.setattr(replica_repair, "let_pass", happen_once)
    status, out, _ = check("--depth", "files", "--repair", "--yes", "-o", "json")
    (repair,) = json.loads(out)["repairs"]
    assert (status, repair["state"], repair["why"], notes(world)) == (1, "refused", why, NO_NOTES)


def test_a_log_is_read_once_a_poll_however_many_replicas_are_repaired(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = replica_check.check_replicas(world.cluster, observe_brokers(world.cluster), {P0, P1}, "state")
    repairs = [replica_repair.Repair(2, p, f"flights-{p.partition}", 0, 1, 0) for p in (P0, P1)]
    refresh, reads = ReplicaLog.refresh, list[str]()

    def counted(log: ReplicaLog, max_staleness: float | None = None) -> Any:
        reads.append(log.root.uri)
        return refresh(log, max_staleness)

    monkeypatch.setattr(ReplicaLog, "refresh", counted)
    outcomes = replica_repair.carry_out_repairs(world.cluster, seen, repairs, 0, "test")
    assert ([outcome.state for outcome in outcomes], len(reads)) == ([replica_repair.UNDER_WAY] * 2, 1)
