"""`bench profile`: the parts of a send add up to its time, and no time is asserted."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from lakelog.replication.clients import sender
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds import carry_out as rounds
from lakelog.replication.protocol.rounds.send_steps import Pause
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import GROUPS
from lakelog.verification.bench.flame_graph import flame_graph
from lakelog.verification.bench.profile import Profile, SendProfile, table_of
from lakelog.verification.bench.profile_report import profile_figures, profile_tables
from lakelog.verification.bench.send_path import MicroBatch, Trace, batch_parts, durations, parts_of
from lakelog.verification.bench.spans import COMMIT, Span, Tracer
from lakelog.verification.bench.thread_cpu import JVM_GROUPS, cpu_now, cpu_since, group_of
from lakelog.verification.verbs.bench import main
from tests.processes import wait_until

if TYPE_CHECKING:
    pass

PARTITION = TopicIdPartition("bench-id", 0)


class Story:
    """Makes the spans of a send from their names and times."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, name: str, start: float, end: float, parent: Span | None = None, **about: object) -> Span:
        values = {"thread": "", **about}
        span = Span(len(self.spans) + 1, parent.id if parent else 0, name, start=start, end=end, **values)
        self.spans.append(span)
        return span


def story() -> tuple[Story, Span]:
    """A send of 100 s to leader 1, whose follower 2 has it at 70, and whose HW is published at 85."""
    told = Story()
    send = told.add("send", 0, 100)
    work = told.add("produce", 1, 100, send)
    told.add("write segment", 3, 5, thread="pool")
    told.add(COMMIT, 6, 11, thread="pool", table="/lake/broker-1/log", why="append")
    fetch = told.add("FetchRound.run", 40, 71, thread="Thread-4")
    told.add("FetchHeaders", 41, 50, fetch)
    plan = SimpleNamespace(starts=lambda: {PARTITION: ""})
    appended = told.add("AppendFetched", 55, 60, fetch, step=SimpleNamespace(plan=plan))
    told.add(COMMIT, 56, 59, appended, table="/lake/broker-2/log", why="fetched")
    published = told.add("PublishReplicas", 61, 70, fetch)
    told.add(COMMIT, 62, 69, published, table="/lake/broker-2/replicas", why="fetched")
    looked = told.add("LeaderRound.run", 75, 80, thread="broker-1")
    told.add("ReadFollowerRows", 76, 79, looked)
    told.add(COMMIT, 81, 85, thread="broker-1", table="/lake/broker-1/replicas", why="high watermark")
    told.add("ReadLeaderships", 20, 21, work)
    told.add("ReadLeaderships", 90, 91, work)
    return told, send


PHASES = {
    "latestOffset": 4000, "walCommit": 3000, "getBatch": 0, "queryPlanning": 2000, "addBatch": 33000,
    "commitOffsets": 5000, "triggerExecution": 52000,
}  # fmt: skip
BATCH = MicroBatch("broker-2:ReplicaFetcherThread-0-1", 7, 25.0, PHASES)


def test_the_parts_of_a_send_follow_one_another_without_a_gap() -> None:
    told, send = story()
    parts = parts_of(Trace(told.spans, [BATCH], {PARTITION: 1}), send)
    assert parts is not None
    assert sum(parts.values()) == send.seconds
    assert {name: seconds for name, seconds in parts.items() if seconds} == {
        "client: reads metadata, gives records their partitions": 3,
        "client: reads logs, decides": 1,
        "client: writes segments": 2,
        "client: commits": 5,
        "follower: waits until its stream has found the segments": 18,
        "follower: Spark: walCommit": 3,
        "follower: Spark: queryPlanning": 2,
        "follower: Spark: calls our function": 6,
        "follower: decides": 7,
        "follower: FetchHeaders": 9,
        "follower: AppendFetched": 5,
        "follower: PublishReplicas": 9,
        "leader: waits for its next look": 5,
        "leader: decides": 3,
        "leader: ReadFollowerRows": 3,
        "leader: publishes the HW": 4,
        "client: waits for its next look": 5,
        "client: sees the HW": 10,
    }


def test_the_parts_of_a_micro_batch_add_up_to_the_time_until_its_first_round_has_ended() -> None:
    told, send = story()
    (parts,) = batch_parts(Trace(told.spans, [BATCH], {PARTITION: 1}), send)
    assert sum(parts.values()) == 71 - BATCH.found
    assert (parts["Spark: calls our function"], parts["our function: FetchHeaders"]) == (6, 9)


def test_a_round_of_an_open_micro_batch_waits_for_no_stream() -> None:
    told, send = story()
    told.add("FetchRound.run", 30, 35, thread="Thread-4")  # an earlier send's
    trace = Trace(told.spans, [BATCH], {PARTITION: 1})
    parts = parts_of(trace, send)
    assert parts is not None
    assert sum(parts.values()) == send.seconds
    assert parts["follower: waits until its open micro-batch goes on"] == 29
    assert batch_parts(trace, send) == []


def test_the_follower_that_came_last_is_on_the_way_if_the_leader_had_seen_it() -> None:
    told, send = story()
    late = told.add("FetchRound.run", 40, 90)
    plan = SimpleNamespace(starts=lambda: {PARTITION: ""})
    told.add("AppendFetched", 41, 83, late, step=SimpleNamespace(plan=plan))
    told.add("PublishReplicas", 84, 90, late)
    parts = parts_of(Trace(told.spans, [BATCH], {PARTITION: 1}), send)
    assert parts is not None
    assert parts["follower: AppendFetched"] == 5


@pytest.mark.parametrize("missing", ["LeaderRound.run", "AppendFetched", "ReadLeaderships"])
def test_a_send_with_an_unknown_step_is_not_explained(missing: str) -> None:
    told, send = story()
    known = [span for span in told.spans if span.name != missing]
    assert parts_of(Trace(known, [BATCH], {PARTITION: 1}), send) is None


def test_a_mark_before_the_last_one_ends_an_empty_part() -> None:
    assert durations(1, [("a", 3), ("b", 2), ("a", 4)]) == {"a": 3, "b": 0}


def test_a_step_that_a_shared_thread_hands_on_has_its_own_name() -> None:
    class StepOf(SimpleNamespace):
        pass

    def work() -> rounds.Round[StepOf, int]:
        return (yield StepOf(step=Pause(1.0)))

    tracer = Tracer()
    with tracer.tracing():
        assert sender.carry_out(work(), {StepOf: lambda _: 7}) == 7
    assert (tracer.spans[0].name, tracer.spans[0].step) == ("Pause", Pause(1.0))


def test_steps_and_commits_are_timed_while_a_tracer_is_entered(tmp_path: Path) -> None:
    table = StateTable.create(StorageRoot.of(str(tmp_path)), GROUPS)

    def work() -> rounds.Round[Pause, str]:
        return (yield Pause(1.0))

    def handle(_: Pause) -> str:
        table.update({"who": "test", "why": "because"}, lambda rows: rows)
        return "answer"

    tracer = Tracer()
    with tracer.tracing(), tracer.span("send"):
        assert sender.carry_out(work(), {Pause: handle}) == "answer"
    sender.carry_out(work(), {Pause: handle})
    assert sender.carry_out is rounds.carry_out
    trace = Trace(tracer.spans, [], {})
    (send,) = (span for span in trace.spans if span.name == "send")
    assert [span.name.rpartition(".")[2] for span in trace.spans] == ["send", "work", "Pause", COMMIT]
    (commit,) = trace.within(send, COMMIT)
    assert (commit.why, table_of(commit.table)) == ("because", tmp_path.name)


@pytest.mark.parametrize(("name", "group"), [
    ("C2 CompilerThre", "JVM: JIT compiler"), ("stream executio", "JVM: streams' threads"), ("x", "JVM: others"),
])  # fmt: skip
def test_threads_of_the_jvm_have_groups(name: str, group: str) -> None:
    assert group_of(name, JVM_GROUPS) == group


def test_cpu_time_is_that_of_the_threads_group_and_moves_when_the_thread_ends() -> None:
    stop, group = threading.Event(), "Python: brokers' rounds"
    before, thread = cpu_now(), threading.Thread(target=_be_busy, args=(stop,), name="broker-7")
    thread.start()
    wait_until(lambda: cpu_since(before).get(group, 0) > 0.1, "CPU time of a busy thread")
    stop.set()
    thread.join()
    wait_until(lambda: cpu_since(before)["Python: threads that have ended"] > 0.05, "CPU time of an ended thread")
    assert group not in cpu_since(before)


def _be_busy(stop: threading.Event) -> None:
    while not stop.is_set():
        pass


def test_a_flame_graph_is_a_drawing_whose_boxes_are_as_wide_as_their_values() -> None:
    drawn = ElementTree.fromstring(flame_graph({("a", "<b>"): 3.0, ("a", "c"): 1.0, ("d",): 4.0}, "sends & more", 2.0))
    boxes = {}
    for box in drawn.iter("{http://www.w3.org/2000/svg}g"):
        title, rectangle = list(box)[:2]
        boxes[title.text] = float(rectangle.attrib["width"]), float(rectangle.attrib["x"])
    assert boxes == {
        "all: 16.0, 100.0%": (1600, 0),
        "a: 8.0, 50.0%": (800, 0),
        "<b>: 6.0, 37.5%": (600, 0),
        "c: 2.0, 12.5%": (200, 600),
        "d: 8.0, 50.0%": (800, 800),
    }


def profile() -> Profile:
    parts, cpu = [{"a": 0.4, "b": 0.2}, {"a": 0.2, "c": 0.00002}], {"JVM: tasks": 0.3, "Python: client": 0.1}
    send = SendProfile("12 partitions", [0.6, 0.2001], parts, [{"x": 0.1}], 4, {("log", "append"): [0.01, 0.03]}, cpu)
    return Profile([send])


def test_the_figures_are_means_of_a_send_that_add_up() -> None:
    (found,) = profile_figures(profile())["sends"]
    assert found["parts_ms"] == {"a": 300, "b": 100, "c": 0.01}
    assert (found["core_ms"], found["core_ms_by_threads"]) == (200, {"JVM: tasks": 150, "Python: client": 50})
    assert (found["commits_a_send"], found["looks_waited_for"], found["sends_explained"]) == (1, 2, 2)
    assert found["commits"] == [{"table": "log", "why": "append", "a_send": 1, "ms": 20}]


def test_the_tables_have_all_parts_and_their_sum() -> None:
    tables = profile_tables(profile())
    shown = [{str(next(iter(row.values()))): row["12 partitions"] for row in rows} for rows in tables]
    assert shown[0] == {"a": "300.0", "b": "100.0", "the rest": "0.0", "together": "400.0", "median": "400.1"}
    assert shown[2] == {"log: append": "1.0 × 20.0 ms", "together": "1.0"}
    assert shown[3] == {"JVM: tasks": "150.0", "Python: client": "50.0", "together": "200.0"}


@pytest.mark.parametrize("argv", [["profile", "--sends", "0"], ["profile", "--flame", "none/flame.svg"]])
def test_wrong_arguments_are_refused_before_spark_starts(argv: list[str]) -> None:
    assert main(argv) == 2
