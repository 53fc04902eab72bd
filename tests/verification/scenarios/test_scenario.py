"""Scenario scripts: errors in a script, and the observed state of a partition."""

import inspect
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import TimeoutException
from lakelog.replication.protocol.elections import new_partition, with_leader
from lakelog.replication.protocol.partition_log import STOPPED, Role
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.truncate import delete_logs
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.scenarios import observation, script_steps
from lakelog.verification.scenarios.observation import differences, poll
from lakelog.verification.scenarios.report import ScenarioReport, ScriptResult, StepResult, states, write_json
from lakelog.verification.scenarios.scene import Observed, Scene, attempt, hold
from lakelog.verification.scenarios.script import ScriptError, read_script
from lakelog.verification.scenarios.script_cluster import metadata_history
from lakelog.verification.scenarios.script_steps import HANDLERS, consume, epoch_end, logs, no_replica_deleted, produce
from lakelog.verification.scenarios.step_arguments import steps_for
from lakelog.verification.verbs.scenario import main
from tests.registrations import joined, register
from tests.storage.logs import P0, TOPIC, TOPIC_ID, follow, lead, records, request, send

SCRIPTS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
HEAD = "name: n\nsteps:\n"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_of_ours_can_be_read_and_says_what_it_proves(path: Path) -> None:
    assert path.read_text().startswith("# ")
    assert read_script(str(path)).steps


def test_names_of_our_scripts_differ() -> None:
    assert len({read_script(str(path)).name for path in SCRIPTS}) == len(SCRIPTS) >= 16


def test_what_is_not_given_has_its_default(tmp_path: Path) -> None:
    steps = " - kill: 3\n - produce: {topic: t}\n - sleep: 0.5\n - stop: controller\n"
    script = read_script(written(tmp_path, HEAD + steps))
    assert (script.name, script.brokers, script.cluster_roots, script.store) == ("n", 3, 0, None)
    kill, produce, sleep, stop = script.steps
    assert stop.arguments == {"broker": "controller"}
    assert (kill.name, kill.arguments, kill.line) == ("kill", {"broker": 3}, 3)
    assert produce.arguments == {
        "topic": "t", "partition": 0, "count": 1, "acks": "all", "prefix": "m", "timeout_s": 15, "retries": None,
        "expect": "ok",
    }  # fmt: skip
    assert (produce.given, str(produce), sleep.arguments) == ({"topic": "t"}, "produce topic=t", {"seconds": 0.5})


def test_brokers_and_values_of_any_kind(tmp_path: Path) -> None:
    steps = " - wait: {topic: t, leader: none, isr: [4]}\n - consume: {topic: t, expect_values: [m0, 1]}\n"
    script = read_script(written(tmp_path, "name: n\nbrokers: 4\nsteps:\n" + steps))
    wait, consumed = script.steps
    assert (script.brokers, wait.arguments["leader"], wait.arguments["isr"]) == (4, -1, [4])
    assert consumed.arguments["expect_values"] == ["m0", "1"]


FAULTS = {
    "nothing": ("", "script.yaml:1: is empty; a script has name, brokers, cluster_roots, store, steps"),
    "no YAML": ("name: n\nsteps: [", "script.yaml:2: .*; it must be YAML"),
    "two documents": ("name: n\n---\nname: m\n", "script.yaml:2: .*; it must be YAML"),
    "a list": ("- kill: 1\n", "script.yaml:1: a script must be a mapping"),
    "an unknown key": (
        "name: n\nsetps: []\n",
        "script.yaml:2: setps is not known; a script has name, brokers, cluster_roots, store, steps",
    ),
    "no name": ("steps:\n - kill: 1\n", "script.yaml:1: name is missing"),
    "no steps": ("name: n\n", "script.yaml:1: steps is missing"),
    "empty steps": ("name: n\nsteps: []\n", "script.yaml:2: steps must be a list of steps"),
    "brokers": ("name: n\nbrokers: none\nsteps: []\n", "script.yaml:2: brokers is 'none', it must be a whole number"),
    "a key twice": (HEAD + " - produce:\n    topic: t\n    topic: u\n", "script.yaml:5: produce has topic twice"),
    "a bare word": (HEAD + " - kill\n", "script.yaml:3: a step must be a mapping"),
    "two names": (HEAD + " - kill: 1\n   start: 1\n", "script.yaml:3: a step has one name, .* this one has 2"),
    "an unknown step": (HEAD + " - shrink: {}\n", "step shrink at .*script.yaml:3 is not known; known are create_"),
    "a later unknown step": (
        HEAD + " - kill: 1\n - compact: {topic: t}\n",
        "step compact at .*script.yaml:4 is not known; known are .* produce",
    ),
    "an unknown argument": (
        HEAD + " - produce: {topic: t,\n     cuont: 3}\n",
        "script.yaml:4: produce: argument cuont is not known; known are topic, partition, count",
    ),
    "a missing argument": (HEAD + " - produce: {count: 3}\n", "script.yaml:3: produce: argument topic is missing"),
    "an unknown expectation": (
        HEAD + " - describe: {topic: t, expect: {leo: 3}}\n",
        "script.yaml:3: describe: expect: argument leo is not known; known are leader, leader_epoch, isr",
    ),
    "text for a number": (HEAD + " - produce: {topic: t, count: many}\n", "count is 'many', it must be a whole number"),
    "truth for a number": (HEAD + " - produce: {topic: t, count: true}\n", "count is True, it must be a whole number"),
    "a number for text": (HEAD + " - consume: {topic: 7}\n", "consume: topic is 7, it must be text"),
    "acks": (HEAD + " - produce: {topic: t, acks: 2}\n", "acks is 2, it must be all or -1 or 0 or 1"),
    "no truth": (HEAD + " - logs: {topic: t, same: 1}\n", "logs: same is 1, it must be true or false"),
    "an election": (HEAD + " - elect: {topic: t, type: fair}\n", "type is 'fair', it must be preferred or unclean"),
    "no list": (HEAD + " - wait: {topic: t, isr: 1}\n", "isr is 1, it must be a list, each one of the brokers 1, 2, 3"),
    "an assignment": (
        HEAD + " - create_topic: {topic: t, assignment: [1, 2]}\n",
        r"assignment is \[1, 2\], it must be a mapping of partitions to their brokers",
    ),
    "another broker": (HEAD + " - kill: 4\n", "script.yaml:3: kill is 4, it must be one of the brokers 1, 2, 3"),
    "a controller": (HEAD + " - restart: controller-1\n", "restart is 'controller-1', it must be .* 3, or controller"),
    "a leader": (HEAD + " - wait: {topic: t, leader: controller}\n", "leader is 'controller', it must be one of the"),
    "a wrong root": (
        HEAD + " - replace_cluster_root: burnt\n",
        "script.yaml:3: replace_cluster_root is 'burnt', it must be deleted or emptied or",
    ),
    "a cluster root that is lost otherwise": (
        HEAD + " - take_cluster_root_away: {root: 1, by: fire}\n",
        "take_cluster_root_away: by is 'fire', it must be away or hanging or deleted or emptied",
    ),
    "no number of cluster roots": ("name: n\ncluster_roots: three\nsteps:\n - kill: 1\n", "cluster_roots is 'three'"),
    "a store": (
        "name: n\nstore: tape\nsteps:\n - kill: 1\n",
        "script.yaml:2: store is 'tape', it must be disk or s3",
    ),
    "a copy": (HEAD + " - copy_cluster_root: {to: x}\n", "copy_cluster_root: argument to is not known; known are none"),
    "no argument": (HEAD + " - no_replica_deleted: 1\n", "no_replica_deleted must be a mapping"),
    "an error": (HEAD + " - start: {broker: 1, expect_error: 5}\n", "start: expect_error is 5, it must be text"),
    "an error of a kill": (
        HEAD + " - kill: {broker: 1, expect_error: E}\n",
        "kill: argument expect_error is not known",
    ),
    "a broker as text": (HEAD + " - kill: '1'\n", "kill is '1', it must be one of the brokers 1, 2, 3"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_wrong_with_a_script_is_one_line(tmp_path: Path, case: str) -> None:
    text, message = FAULTS[case]
    with pytest.raises(ScriptError, match=message) as raised:
        read_script(written(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_all_scripts_are_read_before_the_first_one_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = str(SCRIPTS[0]), str(tmp_path / "none.yaml")
    assert main([good, bad]) == 2
    assert f"lakelog: {bad}: cannot be read" in capsys.readouterr().err
    assert main([good, bad, "--mode", "processes"]) == 2
    assert main([good, "--mode", "threads"]) == 2


def test_a_script_runs_in_no_other_store_than_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "name: n\nstore: s3\nsteps:\n - kill: 1\n")
    assert main([path, "--store", "disk"]) == 2
    words = f"--store disk: {path} has store: s3; leave out one of them"
    assert words in capsys.readouterr().err
    assert main([path, "--mode", "simulated"]) == 2
    assert f"{path} has store: s3: it needs --mode embedded or processes" in capsys.readouterr().err


def test_every_step_is_carried_out_with_the_arguments_that_it_may_have() -> None:
    known = steps_for((1, 2, 3))
    assert known.keys() == HANDLERS.keys()
    for name, arguments in known.items():
        taken = inspect.signature(HANDLERS[name]).parameters.values()
        required = {p.name for p in taken if p.kind is p.KEYWORD_ONLY}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in taken)
        missing = arguments.keys() - required
        assert required <= arguments.keys(), name
        assert takes_any or not missing, name


SAW = {"leader": 2, "leader_epoch": 3, "isr": [2, 1], "replicas": [1, 2], "offline": [3], "hw": 5}


@pytest.mark.parametrize(
    ("expected", "faults"),
    [
        ({}, []),
        ({"leader": 2, "leader_epoch": 3, "hw": 5}, []),
        ({"leader": None, "isr": None, "hw": None}, []),
        ({"isr": [1, 2], "offline": [3]}, []),
        ({"isr": []}, ["isr is [2, 1], expected []"]),
        ({"replicas": [1, 2]}, []),
        ({"replicas": [2, 1]}, ["replicas is [1, 2], expected [2, 1]"]),
        ({"leader": 1, "hw": 0}, ["leader is 2, expected 1", "hw is 5, expected 0"]),
        ({"leader": -1, "offline": []}, ["leader is 2, expected -1", "offline is [3], expected []"]),
    ],
)
def test_isrs_compare_as_sets_and_replicas_as_lists(expected: dict[str, object], faults: list[str]) -> None:
    assert differences(expected, SAW) == faults


def test_an_error_is_what_is_wrong_and_may_pass() -> None:
    answers = iter([TimeoutException("not yet"), Observed({}, "well")])

    def work() -> Observed:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert attempt(lambda: hold(work, 30)).words == "well"
    failed = hold(lambda: (_ for _ in ()).throw(TimeoutException("too late")), 0)
    assert (failed.fault, failed.saw) == ("TimeoutException: too late", {"error": "TimeoutException"})


class Tables:
    """One partition on the brokers 1 and 2, led by 1, as tables without brokers; the test sets which of them run."""

    def __init__(self, folder: Path) -> None:
        self.uri, self.now_running, self.now_offline = str(folder / "cluster"), [1, 2], {2}
        format_cluster(StorageRoot.of(self.uri), Config())
        self.cluster = Cluster.open(self.uri)
        self.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 1)], (), {"who": "test"})
        self.partition = joined(new_partition(TOPIC, TOPIC_ID, 0, (1, 2), {1, 2}))
        self.version = self.cluster.metadata.put([self.partition], {"who": "test", "why": "made"})
        self.logs = {}
        for broker in (1, 2):
            uri = str(folder / f"broker-{broker}")
            format_broker(StorageRoot.of(uri), self.cluster.cluster_id, broker)
            register(self.cluster.root, broker, StorageRoot.of(uri), metadata_version=self.version)
            self.logs[broker] = ReplicaLog.open(self.cluster.broker_root(broker).child(LOG.name))
        lead(self.logs[1], P0, epoch=0)
        follow(self.logs[2], P0, epoch=0)

    def running(self) -> list[int]:
        return self.now_running

    def offline(self) -> set[int]:
        return self.now_offline

    def say(self, broker: int, high_watermark: int) -> None:
        end, chain = self.logs[broker].refresh().partition(P0).log_end
        role = LEADER_ROLE if broker == 1 else FOLLOWER_ROLE
        row = ReplicaStatus(
            TOPIC, TOPIC_ID, 0, broker, 1, 0, role, "Fetching", 0, end, high_watermark, (), None, 0, chain=chain
        )
        ReplicaTable.open(self.cluster.broker_root(broker)).publish([row], "test")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


@pytest.fixture
def scene(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Reads once."""
    for module, name in ((observation, "_HOLD_SECONDS"), (script_steps, "_HOLD_SECONDS")):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(script_steps, "_CONSUME_SECONDS", 0)
    return Scene(tables)


def test_numbers_run_on_in_each_partition_whatever_the_prefix(scene: Scene) -> None:
    assert scene.next_values("t", 0, "m", 2) == ["m0", "m1"]
    assert scene.next_values("t", 1, "m", 1) == ["m0"]
    assert scene.next_values("u", 0, "m", 1) == ["m0"]
    assert scene.next_values("t", 0, "lost", 1) == ["lost2"]


def test_a_producer_goes_on_unless_other_settings_are_wanted(scene: Scene) -> None:
    assert scene.producer("all", None) is scene.producer("all", None)
    assert len({id(scene.producer(*settings)) for settings in (("all", None), ("all", 0), (1, None))}) == 3


def test_what_is_seen_of_a_partition(tables: Tables, scene: Scene) -> None:
    tables.say(1, 0)
    outcome = poll(scene, TOPIC, 0, {"leader": 1, "hw": 0, "offline": [2]})
    assert outcome.fault is None
    assert outcome.saw == {
        "leader": 1, "leader_epoch": 0, "isr": [1, 2], "replicas": [1, 2], "offline": [2], "hw": 0,
        "brokers": {"1": {"leo": 0, "hw": 0, "log_start": 0}, "2": None},
    }  # fmt: skip


def test_a_look_counts_once_every_running_broker_has_applied_the_metadata(tables: Tables, scene: Scene) -> None:
    tables.say(1, 0)
    changed = with_leader(tables.partition, 1, [1])
    version = tables.cluster.metadata.put([changed], {"who": "test", "why": "changed"})
    registry = BrokerTable.open(tables.cluster.root, 1)
    assert poll(scene, TOPIC, 0, {"leader": 1}).fault == "; ".join(
        f"broker {broker} has applied metadata version {version - 1}, not yet {version}" for broker in (1, 2)
    )
    registry.heartbeat(1, "test", metadata_version=version)
    assert poll(scene, TOPIC, 0, {"leader": 1}).fault.startswith("broker 2 has applied")
    tables.now_running = [1]
    assert poll(scene, TOPIC, 0, {"leader": 1}).fault is None
    assert poll(scene, TOPIC, 0, {"leader_epoch": 0}).fault == "leader_epoch is 1, expected 0"
    assert poll(scene, TOPIC, 0, {}).saw["hw"] is None, "the leader has not taken up this epoch"


@pytest.mark.parametrize("retries", [None, 0])
def test_mc_04_what_is_sent_without_a_leader_times_out(tables: Tables, scene: Scene, retries: int | None) -> None:
    tables.cluster.metadata.put([with_leader(tables.partition, -1, [1])], {"who": "test", "why": "no broker lives"})
    sent = partial(produce, scene, topic=TOPIC, partition=0, count=1, acks="all", prefix="m", timeout_s=0.02)
    outcome = sent(retries=retries, expect="TimeoutException")
    assert (outcome.fault, outcome.saw["error"]) == (None, "TimeoutException")


LOGS = {
    "all is well": ({"same": True, "expect_values": ["a", "b"]}, ("a", "b"), None),
    "the epoch counts": ({"same": True}, ("a", "b", 1), "the logs are not the same"),
    "nothing is asked": ({}, ("a",), None),
    "one lacks something": ({"same": True}, ("a",), "the logs are not the same"),
    "they differ, as wanted": ({"same": False}, ("a",), None),
    "they do not differ": ({"same": False}, ("a", "b"), "the logs are the same"),
    "only one is asked": ({"brokers": [1], "expect_values": ["a", "b"]}, (), None),
    "another value": ({"expect_values": ["a", "b"]}, ("a", "c"), "broker 2 has a c; expected a b"),
}


@pytest.mark.parametrize("case", LOGS)
def test_logs_are_compared_in_all_columns(tables: Tables, scene: Scene, case: str) -> None:
    """The content of broker 2: values, and the leader epoch if that is not 0."""
    asked, held, fault = LOGS[case]
    send(tables.logs[1], request(P0, 2), tables={P0: records(b"a", b"b")})
    values, epoch = [value.encode() for value in held if isinstance(value, str)], 1 if 1 in held else 0
    lead(tables.logs[2], P0, epoch=epoch)
    if values:
        send(tables.logs[2], request(P0, len(values), epoch=epoch), tables={P0: records(*values)})
    arguments = {"brokers": None, "same": None, "expect_values": None, **asked}
    outcome = logs(scene, topic=TOPIC, partition=0, **arguments)
    assert (outcome.fault, outcome.saw["values"]["1"]) == (fault, ["a", "b"])


@pytest.mark.parametrize("anew", [False, True])
def test_what_is_consumed_lies_below_the_high_watermark(tables: Tables, scene: Scene, anew: bool) -> None:
    send(tables.logs[1], request(P0, 2), tables={P0: records(b"a", b"b")})
    tables.say(1, 1)
    asked: dict[str, Any] = {"topic": TOPIC, "partition": 0, "expect_values": None, "anew": anew}
    assert consume(scene, **{**asked, "expect_values": ["a"]}).fault is None
    assert consume(scene, **{**asked, "expect_values": ["a", "b"]}).fault == "a, expected a b"
    assert consume(scene, **asked).saw == {"values": ["a"]}
    assert consume(scene, **{**asked, "topic": "unknown"}).words == "UnknownTopicOrPartitionException"


def test_ep_03_epochs_end_where_the_leader_says_and_followers_refuse_to(tables: Tables, scene: Scene) -> None:
    send(tables.logs[1], request(P0, 2), tables={P0: records(b"a", b"b")})
    tables.say(1, 2)
    outcome = epoch_end(scene, topic=TOPIC, partition=0, epochs=[0, 4])
    assert outcome.fault is None
    assert outcome.saw == {
        "ends": {"0": {"leader_epoch": 0, "end_offset": 2}, "4": {"leader_epoch": -1, "end_offset": -1}},
        "followers": {"2": "NOT_LEADER_OR_FOLLOWER"},
    }


def test_a_deleted_replica_is_found_in_the_history_of_its_log(tables: Tables, scene: Scene) -> None:
    send(tables.logs[1], request(P0, 2), tables={P0: records(b"a", b"b")})
    assert no_replica_deleted(scene).words == "the cluster root was not replaced"
    scene.note_logs()
    send(tables.logs[1], request(P0, 2, sequence=2), tables={P0: records(b"c", b"d")})
    assert no_replica_deleted(scene).fault is None
    tables.logs[1].become({P0: Role(1, STOPPED)}, "test")
    delete_logs(tables.logs[1], [P0], "test")
    scene.note_logs()
    version = tables.logs[1].refresh().version
    assert no_replica_deleted(scene).fault == f"broker 1 has deleted a replica in version {version} of its log"


def test_history_has_each_state_once(tables: Tables) -> None:
    alone = with_leader(tables.partition, 2, [2])
    for changed, why in ((alone, "alone"), (tables.partition, "undone")):
        tables.cluster.metadata.put([changed], {"who": "test", "why": why})
    history = metadata_history(tables.cluster.root)
    assert [version.version for version in history] == [0, 1, 2, 3]
    found = [(s["version"], s["why"], s["leader"], s["leader_epoch"], s["isr"]) for s in states(history)]
    assert found == [(1, "made", 1, 0, [1, 2]), (2, "alone", 2, 1, [2]), (3, "undone", 1, 0, [1, 2])]
    again = [*history, history[-1]]
    assert len(list(states(again))) == 3


def test_a_person_and_a_program_are_told_what_came_of_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = read_script(written(tmp_path, HEAD + " - kill: 1\n - wait: {topic: '[t]', isr: [1]}\n"))
    kill, wait = script.steps
    told = StepResult(kill, Observed({}, "running are 2,3"), 1200, 30)
    failed = StepResult(wait, Observed({"isr": [2]}, "ISR 2 :x: [t]", "isr is [2], expected [1]"), 31_200, 30_000)
    results = [ScriptResult(script, (told,), []), ScriptResult(script, (told, failed), [])]
    report = ScenarioReport()
    report.step(told)
    report.step(failed)
    report.ends(results)
    first, second, fault, *table = capsys.readouterr().out.splitlines()
    assert first.split() == "✓ 1.2 s kill broker=1 running are 2,3".split()
    assert second.split() == "✗ 31.2 s wait topic=[t] isr=[1] ISR 2 :x: [t]".split()
    assert fault.strip() == "line 4: isr is [2], expected [1]"
    assert [line.split()[:4] for line in table[-2:]] == [["n", "✗", "1", "2"], ["n", "✗", "2", "2"]]
    write_json(tmp_path / "one.json", results[:1])
    write_json(tmp_path / "two.json", results)
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert (one["ok"], one["steps"][0]["at_ms"], two[0] == one) == (False, 1200, True)
    assert two[1]["steps"][1]["saw"] == {"isr": [2]}
