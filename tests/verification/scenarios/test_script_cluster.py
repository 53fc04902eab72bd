"""The server that a script names, and steps that are not allowed, on servers that only record their calls."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakelog.replication.config import Config
from lakelog.replication.errors import BrokerNotAvailableException
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.clusters.cluster_under_test import CONTROLLERS, ClusterUnderTest, Server, State
from lakelog.verification.roots.roots import LocalRoots
from lakelog.verification.scenarios.script_cluster import CONTROLLER, ScriptCluster
from lakelog.verification.scenarios.script_steps import start

FIRST, SECOND = CONTROLLERS


class Remembered(ClusterUnderTest):
    """Brokers 1 and 2 and two controllers; a controller's id is its name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalRoots(folder), (1, 2), Config())
        format_cluster(StorageRoot.of(self.uri), Config())
        self.lease = Cluster.open(self.uri).lease
        self.states: dict[Server, State] = {}

    def state(self, server: Server) -> State:
        return self.states[server]

    def elect(self, name: str) -> None:
        assert self.lease.elect(name, self.lease.read()) is not None

    def has_id(self, name: str, controller_id: str) -> bool:
        return name == controller_id

    def start_all(self) -> None:
        self.states = dict.fromkeys((1, 2, FIRST, SECOND), "running")
        self.elect(FIRST)

    def kill_all(self) -> None:
        self.states = dict.fromkeys(self.states, "stopped")

    def kill(self, server: Server) -> None:
        self.states[server] = "stopped"

    def pause(self, server: Server) -> None:
        self.states[server] = "paused"

    def resume(self, server: Server) -> None:
        self.states[server] = "running"

    def stop(self, server: Server) -> None:
        self.states[server] = "stopped"

    def start(self, server: Server) -> None:
        self.states[server] = "running"


@pytest.fixture
def servers(tmp_path: Path) -> Remembered:
    return Remembered(tmp_path)


@pytest.fixture
def cluster(servers: Remembered) -> Iterator[ScriptCluster]:
    with ScriptCluster(servers) as made:
        yield made


@pytest.mark.parametrize(
    ("before", "act", "after"),
    [
        ("running", ScriptCluster.kill, "stopped"),
        ("paused", ScriptCluster.kill, "stopped"),
        ("running", ScriptCluster.pause, "paused"),
        ("paused", ScriptCluster.resume, "running"),
        ("running", ScriptCluster.stop, "stopped"),
        ("stopped", ScriptCluster.start, "running"),
        ("stopped", ScriptCluster.restart, "running"),
        ("paused", ScriptCluster.restart, "running"),
        ("running", ScriptCluster.restart, "running"),
    ],
)
def test_what_may_be_done_to_a_broker(
    servers: Remembered,
    cluster: ScriptCluster,
    before: State,
    act: Callable[[ScriptCluster, Server], Server],
    after: State,
) -> None:
    servers.states[2] = before
    assert act(cluster, 2) == 2
    assert (servers.state(2), cluster.running()) == (after, [1, 2] if after == "running" else [1])


@pytest.mark.parametrize(
    ("state", "act", "message"),
    [
        ("stopped", ScriptCluster.kill, "kill: broker 2 is stopped, it must be running or paused"),
        ("paused", ScriptCluster.pause, "pause: broker 2 is paused, it must be running"),
        ("running", ScriptCluster.resume, "resume: broker 2 is running, it must be paused"),
        ("paused", ScriptCluster.stop, "stop: broker 2 is paused, it must be running"),
        ("running", ScriptCluster.start, "start: broker 2 is running, it must be stopped"),
    ],
)
def test_what_may_not_be_done_to_a_broker(
    servers: Remembered,
    cluster: ScriptCluster,
    state: State,
    act: Callable[[ScriptCluster, Server], Server],
    message: str,
) -> None:
    servers.states[2] = state
    with pytest.raises(BrokerNotAvailableException, match=message):
        act(cluster, 2)


def test_a_start_may_be_expected_to_fail(servers: Remembered, cluster: ScriptCluster) -> None:
    scene: Any = SimpleNamespace(cluster=cluster)
    refused = start(scene, broker=1, expect_error="BrokerNotAvailableException")
    assert (refused.fault, refused.words) == (None, "BrokerNotAvailableException")
    assert str(start(scene, broker=1, expect_error="TimeoutException").fault).endswith("; expected TimeoutException")
    servers.states[1] = "stopped"
    assert start(scene, broker=1, expect_error="TimeoutException").fault == "no error, expected TimeoutException"
    servers.states[1] = "stopped"
    assert start(scene, broker=1, expect_error=None).words == "running are 1,2"


def test_the_controller_is_the_one_active_or_the_last_that_is_away(servers: Remembered, cluster: ScriptCluster) -> None:
    assert cluster.pause(CONTROLLER) == FIRST
    servers.elect(SECOND)
    assert cluster.kill(CONTROLLER) == SECOND
    assert cluster.resume(CONTROLLER) == FIRST
    assert cluster.start(CONTROLLER) == SECOND
    with pytest.raises(BrokerNotAvailableException, match="start: controller-2 is running"):
        cluster.start(CONTROLLER)


def test_a_controller_is_restarted_if_it_is_away_and_else_the_one_active(
    servers: Remembered, cluster: ScriptCluster
) -> None:
    assert cluster.restart(CONTROLLER) == FIRST
    servers.elect(SECOND)
    assert cluster.pause(CONTROLLER) == SECOND
    servers.elect(FIRST)
    assert cluster.restart(CONTROLLER) == SECOND
    assert set(servers.states.values()) == {"running"}


def test_one_that_has_resigned_or_does_not_run_is_not_active(
    servers: Remembered, cluster: ScriptCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step waits for an election. Here one is held after the first poll without a controller."""
    polls: list[object] = []
    poll = cluster._active

    def then_elect() -> str | None:
        polls.append(poll())
        if len(polls) == 1:
            servers.elect(SECOND)
        return polls[-1]

    monkeypatch.setattr(cluster, "_active", then_elect)
    held = servers.lease.read()
    assert held is not None
    servers.lease.resign(held)
    assert cluster.kill(CONTROLLER) == SECOND
    assert polls[0] is None
    servers.states[FIRST] = "paused"
    with pytest.raises(BrokerNotAvailableException, match="no controller runs: controller-1, controller-2"):
        cluster.kill(CONTROLLER)


def test_the_history_is_of_the_script_only(cluster: ScriptCluster) -> None:
    everything = cluster.history()
    cluster.first_version = everything[-1].version + 1
    assert (len(everything) > 0, cluster.history()) == (True, [])


def test_what_is_repeated_beside_a_script_ends_with_it(servers: Remembered) -> None:
    before, polled = threading.active_count(), threading.Event()
    end = servers.repeat(polled.set, 0.001)
    assert polled.wait(30)
    end()
    assert threading.active_count() == before
