"""`lakelog status` on real tables without running brokers: the tests write the replica rows."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.jobs import brokers, log_dirs, status
from lakelog.jobs.admin import cluster_notes
from lakelog.replication.clients.controller_channel import ControllerChannel
from lakelog.replication.config import Config
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.clients.world import World
from tests.hanging import raises
from tests.jobs.admin.seen import beat, living_world, written
from tests.jobs.cli.test_webhook import SECRET, Receiver
from tests.jobs.metrics.scraped import live_world
from tests.processes import wait_until
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID

Run = Any  # what a verb has answered: (status, stdout, stderr)


@pytest.fixture
def world(tmp_path: Path, waits: list[float]) -> World:
    assert waits == []
    return living_world(tmp_path)


@pytest.fixture
def show(lakelog: Run, world: World) -> Run:
    """Runs the verb on the cluster."""
    return lambda *words: lakelog(status, "--cluster", world.uri, *words)


HEALTHY = """\
cluster     {uri}
controller  active: c, controller epoch 1, lease renewed 1 s ago
brokers     2 of 2 alive
partitions  2, 0 offline, 0 under-replicated, 0 under min ISR

broker   state   heartbeat age s   leads   follows   lag   failing
──────────────────────────────────────────────────────────────────
     1   alive               1.0       2         0     0         0
     2   alive               1.0       0         2     0         0

Nothing is wrong.
"""


def lines(out: str) -> list[str]:
    return [line.rstrip() for line in out.splitlines()]


def test_a_healthy_cluster_is_status_0(show: Run, world: World, waits: list[float]) -> None:
    code, out, err = show()
    assert (code, lines(out), err) == (0, HEALTHY.format(uri=world.uri).splitlines(), "")
    assert waits == []


def test_what_is_wrong_is_status_1_and_has_what_to_do(show: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    world.change(P0, leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1)
    world.change(P1, leader=2, isr=(2,), leader_epoch=1, partition_epoch=1)
    written(f"{world.uri}/brokers/1", 312.0)
    written(f"{world.uri}/controller", 60.0)
    world.say(0, P1, broker=2, state="Delayed", error="OSError: away")
    code, out, err = show()
    assert (code, err) == (1, "No recent heartbeat from broker 1, the controller: looking again in 3 s\n")
    assert lines(out)[1:4] == [
        "controller  gone: c, controller epoch 1",
        "brokers     1 of 2 alive, 1 is dead",
        "partitions  2, 1 offline, 1 under-replicated, 0 under min ISR",
    ]
    assert [line for line in lines(out) if line.startswith("- ")] == [
        "- no controller is active: c renewed its lease 60 s ago",
        "- broker 1 is dead: its last heartbeat was 5 min ago",
        f"- 1 partition is offline: {TOPIC}-0",
        f"- 1 partition is not served by the new leader yet: {TOPIC}-1",
        f"- 1 partition is under-replicated: {TOPIC}-1",
        f"- replicas of broker 2 are Delayed: OSError: away: {TOPIC}-1",
        f"- 1 partition is at min ISR: {TOPIC}-1",
    ]
    assert sum(line.startswith("  To do: ") for line in lines(out)) == 6
    root = world.roots[1].uri
    assert f"  To do: start it again: `lakelog broker --cluster {world.uri} --broker-id 1 --root {root}`." in lines(out)
    assert "Problems: 6" in lines(out)


def test_json_of_status_has_figures_problems_and_notes(show: Run, world: World) -> None:
    healthy = json.loads(show("-o", "json")[1])
    assert healthy == {
        "ok": True,
        "cluster": world.uri,
        "controller": {"controller": "c", "controller_epoch": 1, "state": "active", "lease_age_s": 1.0},
        "brokers": [
            {"broker": 1, "state": "alive", "heartbeat_age_s": 1.0, "leads": 2, "follows": 0, "lag": 0, "failing": 0},
            {"broker": 2, "state": "alive", "heartbeat_age_s": 1.0, "leads": 0, "follows": 2, "lag": 0, "failing": 0},
        ],
        "partitions": 2,
        "problems": [],
        "notes": [],
    }
    world.change(P1, isr=(1,), partition_epoch=1)
    code, out, _ = show("-o", "json")
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert json.loads(out)["problems"] == [
        {
            "what": "1 partition is under-replicated", "names": [f"{TOPIC}-1"],
            "do": "broker 2 is not in sync: start it if it is dead",
        }
    ]  # fmt: skip


def test_what_a_restart_would_stop_is_noted_and_is_not_wrong(show: Run, world: World) -> None:
    configs = {"min.insync.replicas": "2", "leader.replication.throttled.replicas": "0:1"}
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, configs)], (), {"who": "test"})
    beat(world.uri, 2, follower_replication_quota=1000)
    world.change(P1, removing_replicas=(2,), partition_epoch=1)
    code, out, _ = show()
    assert code == 0
    assert [line for line in lines(out) if line.startswith(("- ", "No"))] == [
        "Nothing is wrong.",
        "Notes: 3",
        f"- 2 partitions are at min ISR: {TOPIC}-0, {TOPIC}-1",
        f"- 1 partition is under reassignment: {TOPIC}-1",
        f"- replication is throttled by settings of broker 2 and of topics {TOPIC}",
    ]
    assert (
        "  While broker 1 or 2 restarts, sends with acks=all to them wait or fail: before, add replicas to them." in out
    )
    assert f"  `lakelog reassign-partitions --cluster {world.uri} --list` shows which way." in out
    notes = json.loads(show("-o", "json")[1])["notes"]
    assert [note["names"] for note in notes] == [[f"{TOPIC}-0", f"{TOPIC}-1"], [f"{TOPIC}-1"], []]


def test_status_without_a_controller_sends_no_request_and_reports_it(
    lakelog: Run, cluster: str, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As right after `format`: there is nothing to wait for."""
    monkeypatch.setattr(ControllerChannel, "ask", raises(AssertionError("nobody is asked")))
    for broker in (1, 2, 3):
        beat(cluster, broker)
    code, out, err = lakelog(status, "--cluster", cluster)
    assert (code, err, waits) == (1, "", [])
    assert "- no controller was ever elected" in lines(out)
    assert "- the root of broker 1 cannot be read here" in out


def test_a_root_of_another_broker_is_a_problem(show: Run, world: World) -> None:
    """Its rows would else count for the broker that is registered there."""
    beat(world.uri, 2, root=world.roots[1].uri)
    (line,) = [line for line in lines(show()[1]) if line.startswith("- ")]
    assert line.startswith("- the root of broker 2 cannot be read here: InconsistentClusterIdException: ")


def test_a_dead_brokers_rows_are_not_read(show: Run, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are old."""
    written(f"{world.uri}/brokers/2", 60.0)
    read, of_2 = LocalRoot.read_buffer, world.roots[2].child("replicas").uri
    monkeypatch.setattr(
        LocalRoot, "read_buffer",
        lambda root, name: raises(AssertionError(root.uri))() if root.uri.startswith(of_2) else read(root, name),
    )  # fmt: skip
    found = json.loads(show("-o", "json")[1])
    assert [(row["broker"], row["lag"]) for row in found["brokers"]] == [(1, 0), (2, None)]


def test_a_root_that_hangs_is_not_waited_for(
    show: Run, lakelog: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead broker's root may be away with its machine. What the others have noted is told."""
    older(world)
    hangs, read = threading.Event(), LocalRoot.read

    def hanging(root: StorageRoot, name: str) -> bytes:
        if root.uri == world.roots[2].uri:
            hangs.wait()
        return read(root, name)

    monkeypatch.setattr(LocalRoot, "read", hanging)
    monkeypatch.setattr(cluster_notes, "_PATIENCE_SECONDS", 0.2)
    try:
        assert "- broker 1 refuses the cluster root: it is an older copy" in show()[1]
        words = ("--cluster", world.uri, "--accept-cluster-root", "--broker-list", "1,2")
        code, _, err = lakelog(log_dirs, *words)
        late = "The note of broker 2 cannot be read: its root does not answer within 0.2 s.\n"
        assert (code, late in err) == (1, True)
    finally:
        hangs.set()


def older(world: World) -> None:
    """Brokers 1 and 2 have applied a later state than the cluster root has now."""
    shutil.copytree(world.uri, f"{world.uri}.older")
    world.change(P0, isr=(1,), partition_epoch=1)
    for root in world.roots.values():
        Cluster.open(world.uri).note_what_was_seen(root)
    shutil.rmtree(world.uri)
    Path(f"{world.uri}.older").rename(world.uri)


def test_a_cluster_root_that_brokers_refuse_is_the_first_problem(show: Run, lakelog: Run, world: World) -> None:
    """They only look dead: to start them again, or a controller, makes it worse."""
    older(world)
    for table in ("brokers/1", "brokers/2", "controller"):
        written(f"{world.uri}/{table}", 60.0)
    code, out, _ = show()
    (line,) = [line for line in lines(out) if line.startswith("- ")]
    assert (code, line) == (
        1,
        "- brokers 1 and 2 refuse the cluster root: it is an older copy: metadata has version 1, and version 2 was "
        "seen",
    )
    assert "start it" not in out
    assert f"`lakelog log-dirs --cluster {world.uri} --accept-cluster-root --broker-list 1,2` shows" in out
    code, _, err = lakelog(brokers, "--cluster", world.uri)
    assert (code, err.splitlines()[-1]) == (0, f"{line[2:].capitalize()}. `lakelog status` says what to do.")


def test_a_single_broker_that_refuses_the_cluster_root_is_one_problem_among_others(show: Run, world: World) -> None:
    """As one that was away when the others were made to accept an older copy."""
    older(world)
    world.cluster.forget_what_was_seen(world.roots[1])
    beat(world.uri, 1)
    for table in ("brokers/2", "controller"):
        written(f"{world.uri}/{table}", 60.0)
    found = [line.partition(": ")[0] for line in lines(show()[1]) if line.startswith("- ")]
    assert found == ["- broker 2 refuses the cluster root", "- no controller is active"]


def test_an_empty_cluster_root_beside_roots_of_another_cluster_is_a_problem(lakelog: Run, world: World) -> None:
    """As one that somebody has formatted again."""
    shutil.rmtree(world.uri)
    format_cluster(StorageRoot.of(world.uri), Config())
    code, out, _ = lakelog(status, "--cluster", world.uri)
    first = next(line for line in lines(out) if line.startswith("- "))
    assert (code, first) == (
        1,
        f"- no broker has registered, and cluster {world.cluster.cluster_id} has its brokers' roots at "
        f"{world.roots[1].uri}, {world.roots[2].uri}",
    )
    assert "start one" not in first
    told = first.partition("registered, ")[2]
    assert lakelog(brokers, "--cluster", world.uri) == (0, "", f"No broker has registered at {world.uri}, {told}.\n")


def test_stray_replicas_are_named(show: Run, world: World) -> None:
    world.say(0, P1, broker=2, state="Stray")
    code, out, _ = show()
    (line,) = [line for line in lines(out) if line.startswith("- ")]
    assert (code, line) == (1, f"- broker 2 has stray replicas, which no metadata explain: {TOPIC}-1")
    assert "--delete-stray --broker-list 2` shows them" in out


def test_td_05_topics_that_are_being_deleted_are_no_problem(show: Run, world: World) -> None:
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, deleting=True)], (), {"who": "test"})
    world.change(P0, leader=-2, isr=(), leader_epoch=1, partition_epoch=1)
    assert (show()[0], json.loads(show("-o", "json")[1])["partitions"]) == (0, 0)


def test_min_insync_replicas_is_the_topics(show: Run, world: World) -> None:
    world.cluster.topics.change(
        [Topic(TOPIC, TOPIC_ID, 2, {"min.insync.replicas": "2", "nonsense": "1"})], (), {"who": "test"}
    )
    assert show()[0] == 0
    world.change(P0, isr=(1,), partition_epoch=1)
    assert f"- 1 partition is under min ISR: {TOPIC}-0" in lines(show()[1])


EVIL = "<img src=x onerror=alert(1)>&\"'`"


class Shown(HTMLParser):
    """The elements, the attributes' values and the text of a page, as a browser reads them."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.values: list[str] = []
        self._text: list[str] = []
        self.feed(source)
        self.close()
        self.text = " ".join("".join(self._text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._text.append(" ")
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self._text.append(data)


def test_a_page_of_status_shows_every_name_and_runs_none(lakelog: Run, tmp_path: Path, waits: list[float]) -> None:
    world = living_world(tmp_path / EVIL)
    world.change(P0, topic=EVIL, leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1)
    world.change(P1, leader=2, isr=(2,), leader_epoch=1, partition_epoch=1)
    world.say(0, P1, broker=2, state="Delayed", error=f"OSError: {EVIL}")
    beat(world.uri, 1, 312.0, rack=EVIL)
    code, out, _ = lakelog(status, "--cluster", world.uri, "-o", "html")
    page = Shown(out)
    assert (code, page.tags & {"script", "img", "iframe", "a", "form"}) == (1, set())
    assert [value for value in page.values if "onerror" in value] == []
    assert f"{EVIL}/cluster" in page.text
    for said in (f"1 partition is offline: {EVIL}-0", f"OSError: {EVIL}: {TOPIC}-1", "To do: start it again: lakelog"):
        assert said in page.text
    assert "Brokers 1 of 2 alive, 1 is dead" in page.text
    assert "1 dead 312.0" in page.text
    assert waits == [3.0]
    assert any(value.startswith("default-src 'none';") for value in page.values)


def test_a_page_of_a_healthy_cluster_is_status_0(show: Run) -> None:
    code, out, err = show("-o", "html")
    assert (code, err) == (0, "")
    assert "Nothing is wrong." in Shown(out).text
    assert "http" not in out.replace("http-equiv", ""), "it loads nothing"


@pytest.mark.parametrize("words", [["-o", "text"], ["--all"], ["now"]])
def test_wrong_usage_is_status_2(show: Run, words: list[str]) -> None:
    code, out, err = show(*words)
    assert (code, out) == (2, "")
    assert "`lakelog status --help` lists the options" in err


def test_what_is_no_cluster_is_one_sentence(lakelog: Run, tmp_path: Path) -> None:
    code, out, err = lakelog(status, "--cluster", tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("lakelog: InconsistentClusterIdException: ")


@pytest.mark.parametrize(
    ("flag", "blocks", "access", "said"),
    [
        (os.ST_RDONLY, 9999, True, "the cluster root {} is read-only here"),
        (0, 1, True, "the cluster root {} is on a full file system (4096 bytes are free)"),
        (0, 9999, False, "this user may not write to the cluster root {}"),
    ],
)
def test_a_broker_that_cannot_write_heartbeats_is_unknown_and_not_dead(
    show: Run,
    lakelog: Run,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    flag: int,
    blocks: int,
    access: bool,
    said: str,
) -> None:
    stat = SimpleNamespace(f_flag=flag, f_frsize=4096, f_bavail=blocks, f_bfree=blocks, f_blocks=10**6)
    monkeypatch.setattr(os, "statvfs", lambda _: stat)
    monkeypatch.setattr(os, "access", lambda *_: access)
    assert show()[0] == 0  # they are seen
    for table in ("brokers/1", "brokers/2", "controller"):
        written(f"{world.uri}/{table}", 60.0)
    code, out, _ = show()
    (line,) = [line for line in lines(out) if line.startswith("- ")]
    assert (code, line.partition(": nobody renews")[0]) == (1, f"- {said.format(world.uri)}")
    assert "start it" not in out
    assert "dead" not in out
    assert "controller  unknown: c, controller epoch 1" in lines(out)
    assert [line.split()[:2] for line in lines(out)[7:9]] == [["1", "unknown"], ["2", "unknown"]]
    _, out, err = lakelog(brokers, "--cluster", world.uri, "-o", "json")
    assert ([row["state"] for row in json.loads(out)], said.format(world.uri) in err) == (["unknown"] * 2, True)
    beat(world.uri, 2)  # so somebody may write, and who is silent is dead
    _, out, err = lakelog(brokers, "--cluster", world.uri, "-o", "json")
    assert ([row["state"] for row in json.loads(out)], said.format(world.uri) in err) == (["dead", "alive"], False)


def test_a_command_to_copy_keeps_the_properties_file(show: Run, world: World, tmp_path: Path) -> None:
    """It may have the credentials of the roots."""
    beat(world.uri, 1, 312.0)
    file = tmp_path / "client.properties"
    file.write_text("request.timeout.ms=5000\n")
    (line,) = [line for line in lines(show("--command-config", file)[1]) if "start it again" in line]
    assert line.endswith(f"--broker-id 1 --root {world.roots[1].uri} --command-config {file}`.")


def test_the_command_that_starts_a_broker_keeps_its_rack(show: Run, world: World) -> None:
    """Without --rack a broker registers without a rack."""
    beat(world.uri, 1, 312.0, rack="zone a")
    (line,) = [line for line in lines(show()[1]) if "start it again" in line]
    assert line.endswith(f"--broker-id 1 --root {world.roots[1].uri} --rack 'zone a'`.")


@pytest.fixture
def live(tmp_path: Path) -> World:
    """Two brokers that are alive, and a controller, by the clock of this machine."""
    return live_world(str(tmp_path))


@pytest.fixture
def follower(live: World) -> Iterator[Callable[..., Followed]]:
    """Starts the verb with --follow as a process of its own. Its brokers count as alive for an hour."""
    started: list[subprocess.Popen[str]] = []
    config = Path(live.uri).parent / "monitor.properties"
    config.write_text("broker.session.timeout.ms=3600000\ncontroller.session.timeout.ms=3600000\n")

    def follow(*words: str, **environment: str) -> Followed:
        common = ("--cluster", live.uri, "--command-config", str(config), "--interval", "1", "--for", "0", "--follow")
        process = subprocess.Popen(
            [sys.executable, "-m", "lakelog.jobs", "status", *common, *words], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, **environment},
        )  # fmt: skip
        started.append(process)
        assert process.stderr is not None
        return Followed(process, process.stderr.readline())

    yield follow
    for process in started:
        process.kill()
        process.wait()


class Followed:
    """A process that follows a cluster."""

    def __init__(self, process: subprocess.Popen[str], first: str) -> None:
        self.process, self.first = process, first
        self.outputs: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.outputs.put(line)

    def object(self) -> dict[str, Any]:
        """The next line of -o json."""
        found: dict[str, Any] = json.loads(self.outputs.get(timeout=60))
        return found

    def stop(self) -> tuple[int, str]:
        """Its status, and what it has said."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        return self.process.wait(60), self.first + self.process.stderr.read()


def test_problems_are_posted_until_they_are_received_and_when_they_end(
    live: World, follower: Callable[..., Followed]
) -> None:
    receiver = Receiver(500, 503, 200)
    follow = follower("--webhook", receiver.url, "-o", "json")
    live.change(P0, isr=(1,), partition_epoch=1)
    begun = follow.object()
    assert [(p["what"], p["partitions"]) for p in begun["begun"]] == [
        ("1 partition is under-replicated", [f"{TOPIC}-0"])
    ]
    assert (begun["status"], begun["problems"], begun["cluster"]) == ("firing", 1, live.uri)
    wait_until(lambda: len(receiver.posts) == 3, "it posts until it is told that it was received")
    assert [post[:2] for post in receiver.posts] == [(SECRET, "application/json")] * 3
    for _, _, posted in receiver.posts:
        assert isinstance(posted, dict)
        assert posted["begun"] == begun["begun"]
        assert posted["text"].splitlines()[0] == f"Lakelog cluster {live.uri}: 1 problem"
    live.change(P0, isr=(1, 2), partition_epoch=2)
    ended = follow.object()
    assert (ended["status"], ended["problems"], ended["begun"]) == ("resolved", 0, [])
    wait_until(lambda: len(receiver.posts) == 4, "it posts the end")
    assert receiver.posts[-1][2]["ended"] == begun["begun"]  # type: ignore[index]
    status, err = follow.stop()
    assert status == 0
    assert err.splitlines() == [
        f"lakelog: follows the problems of {live.uri}, and posts them to http://127.0.0.1:{receiver.server_port}",
        f"lakelog: the webhook fails, and is tried again: http://127.0.0.1:{receiver.server_port}: it answers 500 "
        "Internal Server Error",
        f"lakelog: the webhook fails, and is tried again: http://127.0.0.1:{receiver.server_port}: it answers 503 "
        "Service Unavailable",
    ]


def test_a_cluster_that_goes_away_is_a_problem_and_comes_back(live: World, follower: Callable[..., Followed]) -> None:
    receiver = Receiver(200)
    follow = follower("-o", "json", LAKELOG_WEBHOOK=receiver.url)
    shutil.move(live.uri, f"{live.uri}-away")
    (begun,) = follow.object()["begun"]
    assert begun["what"].startswith("the cluster cannot be read: ")
    shutil.move(f"{live.uri}-away", live.uri)
    assert [ended["what"] for ended in follow.object()["ended"]] == [begun["what"]]
    wait_until(lambda: len(receiver.posts) == 2, "both are posted")
    assert follow.stop()[0] == 0


def test_without_json_the_changes_are_lines_for_people(live: World, follower: Callable[..., Followed]) -> None:
    live.change(P0, leader=-1, isr=(1,), leader_epoch=1, partition_epoch=1)
    follow = follower()
    found = [follow.outputs.get(timeout=60).rstrip("\n") for _ in range(3)]
    assert found[1] == f"- 1 partition is offline: {TOPIC}-0"
    assert found[2].startswith("  To do: ")
    assert follow.stop() == (0, f"lakelog: follows the problems of {live.uri}\n")


@pytest.mark.parametrize(
    ("words", "environment", "error"),
    [
        (["--webhook", "https://host/secret"], "", "--webhook goes with --follow only"),
        (["--interval", "5"], "", "--interval goes with --follow only"),
        (["--for", "5"], "", "--for goes with --follow only"),
        (["--follow", "-o", "html"], "", "-o html shows one moment: it does not go with --follow"),
        (["--follow", "--interval", "0"], "", "--interval: '0' is not a whole number from 1 to 86400"),
        (["--follow", "--webhook", "host/secret"], "", "--webhook: this is no URL"),
        (["--follow"], "host/secret", "LAKELOG_WEBHOOK of the environment: this is no URL"),
    ],
)
def test_wrong_options_of_a_follower_are_one_error_without_the_secret(
    show: Run, words: list[str], environment: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKELOG_WEBHOOK", environment)
    status, out, err = show(*words)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"lakelog status: {error}")
    assert "host" not in line.replace("https://hooks.example.com/services/T0/B0/secret", "")
