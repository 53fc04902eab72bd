"""Whether a broker or a controller is alive: from the newest commit to its table, and a second poll."""

from dataclasses import replace

import pytest

from lakelog.jobs.admin import heartbeats
from lakelog.jobs.admin.heartbeats import (
    Heartbeats,
    ago,
    broker_state,
    controller_state,
    observe,
    observe_brokers,
    pulses,
)
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from tests.jobs.admin.seen import Wait, beat, written

REGISTERED = BrokerRegistration(1, "/1", None, 1, -1, False, None, "id", 0)


@pytest.mark.parametrize(
    ("shutting_down", "storage_error", "is_live", "may_beat", "state"),
    [
        (False, None, True, True, "alive"),
        (False, None, False, True, "dead"),
        (False, None, False, False, "unknown"),
        (True, None, True, True, "stopping"),
        (True, None, False, True, "stopped"),
        (True, None, False, False, "stopped"),
        (False, "disk full", True, True, "storage error"),
        (True, "disk full", True, True, "storage error"),
        (False, "disk full", False, True, "dead"),
    ],
)
def test_a_broker_has_one_of_six_states(
    shutting_down: bool, storage_error: str | None, is_live: bool, may_beat: bool, state: str
) -> None:
    registered = replace(REGISTERED, shutting_down=shutting_down, storage_error=storage_error)
    assert broker_state(registered, is_live, may_beat) == state


@pytest.mark.parametrize(
    ("lease", "is_live", "may_beat", "state"),
    [
        (None, False, True, "never elected"),
        (Lease("a", 1), True, True, "active"),
        (Lease("a", 1), False, True, "gone"),
        (Lease("a", 1), False, False, "unknown"),
        (Lease("a", 1, resigned=True), True, True, "resigned"),
        (Lease("a", 1, resigned=True), False, False, "resigned"),
    ],
)
def test_a_controller_has_one_of_five_states(lease: Lease | None, is_live: bool, may_beat: bool, state: str) -> None:
    assert controller_state(lease, is_live, may_beat) == state


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_a_time_span_has_the_unit_that_people_use(seconds: float, words: str) -> None:
    assert ago(seconds) == words


def seen(cluster: str, wait: Wait = lambda _: None) -> dict[int, tuple[str, float]]:
    return {b: (broker.state, broker.age) for b, broker in observe_brokers(Cluster.open(cluster), wait).items()}


def test_a_recent_heartbeat_is_alive_without_a_second_poll(cluster: str, waits: list[float]) -> None:
    for broker, seconds in ((1, 0.0), (2, 5.9), (3, -5.9)):
        beat(cluster, broker, seconds)
    found = seen(cluster, waits.append)
    assert {broker: state for broker, (state, _) in found.items()} == dict.fromkeys((1, 2, 3), "alive")
    assert [age for _, age in found.values()] == [0.0, pytest.approx(5.9), 0.0]
    assert waits == []


@pytest.mark.parametrize("seconds", [6.0, 3600.0, -6.0], ids=["silent", "clock behind", "clock ahead"])
def test_an_old_heartbeat_is_alive_if_another_follows(cluster: str, waits: list[float], seconds: float) -> None:
    """The clocks of the store and of the command may differ. That alone makes no broker dead."""
    beat(cluster, 1, seconds)
    for broker in (2, 3):
        beat(cluster, broker)

    def goes_on(half: float) -> None:
        waits.append(half)
        beat(cluster, 1, seconds)

    assert {broker: state for broker, (state, _) in seen(cluster, goes_on).items()} == dict.fromkeys((1, 2, 3), "alive")
    assert waits == [3.0]


def test_a_broker_without_heartbeats_is_dead_after_a_second_poll_that_is_announced(
    cluster: str, waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for broker, seconds in ((1, 1.0), (2, 312.0), (3, 40.0)):
        beat(cluster, broker, seconds, shutting_down=broker == 3)
    assert seen(cluster, waits.append) == {1: ("alive", 1.0), 2: ("dead", 312.0), 3: ("stopped", 40.0)}
    assert waits == [3.0]
    said = "No recent heartbeat from broker 2, broker 3: looking again in 3 s\n"
    assert capsys.readouterr().err == said


def test_a_table_that_has_gone_away_is_not_waited_for(cluster: str, waits: list[float]) -> None:
    beat(cluster, 1)
    here, gone = (StorageRoot.of(cluster).child("brokers").child(name) for name in ("1", "4"))
    found = pulses({"here": Heartbeats(here, 6.0), "gone": Heartbeats(gone, 6.0)}, waits.append)
    assert {name: pulse.is_live for name, pulse in found.items()} == {"here": True, "gone": False}
    assert waits == []


def test_a_storage_error_that_is_published_before_the_second_poll_counts(cluster: str, waits: list[float]) -> None:
    for broker in (1, 2, 3):
        beat(cluster, broker, 60.0)
    assert waits == []
    found = seen(cluster, lambda _: beat(cluster, 2, storage_error="disk full"))
    assert {broker: state for broker, (state, _) in found.items()} == {1: "dead", 2: "storage error", 3: "dead"}


def test_the_controller_is_seen_by_its_lease(cluster: str, waits: list[float]) -> None:
    for broker in (1, 2, 3):
        beat(cluster, broker)
    found, lease = Cluster.open(cluster), Cluster.open(cluster).lease

    def state() -> tuple[str, float]:
        return observe(found, waits.append)[1][1:]

    assert state() == ("never elected", 0.0)
    held = lease.elect("a", None)
    assert held is not None
    written(f"{cluster}/controller", 2.0)
    assert state() == ("active", 2.0)
    assert waits == []
    written(f"{cluster}/controller", 60.0)
    assert state() == ("gone", 60.0)
    assert waits == [3.0]
    lease.resign(held)
    written(f"{cluster}/controller", 60.0)
    assert state()[0] == "resigned"
    assert waits == [3.0], "nobody is waited for that has resigned"


def test_a_controller_that_renews_its_lease_is_active_whatever_the_clocks_say(cluster: str, waits: list[float]) -> None:
    for broker in (1, 2, 3):
        beat(cluster, broker)
    lease = Cluster.open(cluster).lease
    held = lease.elect("a", None)
    assert held is not None
    written(f"{cluster}/controller", 3600.0)

    def renew(_: float) -> None:
        lease.renew(held)
        written(f"{cluster}/controller", 3600.0)

    assert observe(Cluster.open(cluster), renew)[1].state == heartbeats.ACTIVE
    assert waits == []
