"""The problems that `lakelog status` finds, and its advice, as tables of cases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lakelog.jobs.admin.cluster_status import (
    ClusterState,
    Partition,
    Problem,
    broker_figures,
    line_of,
    problems,
    summary,
)
from lakelog.jobs.admin.heartbeats import SeenBroker, SeenController
from lakelog.jobs.cli.options import Invocation
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.fencing import Lease
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.replica_status import ReplicaStatus

ACTIVE = SeenController(Lease("c", 3), "active", 1.0)
GONE = SeenController(Lease("c", 3), "gone", 40.0)
LED = PartitionRegistration("t", "id", 0, (1, 2), 1, 0, (1, 2))


def broker(number: int, state: str = "alive", age: float = 1.0, error: str | None = None) -> SeenBroker:
    registration = BrokerRegistration(number, f"/{number}", None, 1, -1, False, error, "id", 0)
    return SeenBroker(registration, state, age)


def row(number: int, role: str = "follower", lag: int | None = 0, state: str = "Fetching", error: str | None = None,
        partition: int = 0) -> ReplicaStatus:  # fmt: skip
    return ReplicaStatus("t", "id", partition, number, 1, 0, role, state, 0, 0, 0, (), error, 0, lag)


def state_of(
    *registrations: PartitionRegistration, controller: SeenController = ACTIVE,
    brokers: tuple[SeenBroker, ...] = (broker(1), broker(2)), rows: Mapping[int, Any] | None = None, least: int = 1,
) -> ClusterState:  # fmt: skip
    """By default leaders have taken up their roles, and other rows are missing, unless brokers are silent."""
    live = [b.registration.broker_id for b in brokers if b.state not in ("dead", "stopped")]
    led = {n: [row(n, "leader", partition=r.partition) for r in registrations if r.leader == n] for n in live}
    given = {number: (rows or {}).get(number, led[number]) for number in live}
    known = {n: r if isinstance(r, str) else {x.topic_id_partition: x for x in r} for n, r in given.items()}
    seen = {b.registration.broker_id: b for b in brokers}
    return ClusterState(controller, seen, [Partition(r, least) for r in registrations], known)


def what(state: ClusterState) -> list[str]:
    return [line_of(problem) for problem in found_in(state)]


def found_in(state: ClusterState) -> list[Problem]:
    return problems(state, Invocation("lakelog", "/lake/cluster"))


@pytest.mark.parametrize(
    "state",
    [
        state_of(),
        state_of(LED, rows={1: [row(1, "leader")], 2: [row(2)]}, least=2),
        state_of(replace(LED, replicas=(1, 2, 3), adding_replicas=(3,))),  # under reassignment
        state_of(replace(LED, replicas=(1,), isr=(1,)), least=2),  # min ISR is limited by the number of replicas
        state_of(LED, brokers=(broker(1), broker(2), broker(3, "stopping"), broker(4, "stopped", 60.0))),
        state_of(LED, rows={2: [row(2, state="Delayed", lag=9)]}),  # throttled by a quota
        state_of(LED, rows={2: [row(2, error="old", partition=1)]}),  # of a deleted partition
    ],
)
def test_a_healthy_cluster_has_no_problems(state: ClusterState) -> None:
    assert what(state) == []


CASES = {
    "no broker": (state_of(brokers=()), ["no broker has registered"]),
    "a leader that has not taken up its role": (
        state_of(LED, rows={1: [row(1)]}), ["1 partition is not served by the new leader yet: t-0"]
    ),
    "a leader of an older epoch": (
        state_of(replace(LED, leader_epoch=7), rows={1: [row(1, "leader")]}),
        ["1 partition is not served by the new leader yet: t-0"],
    ),
    "no controller ever": (
        state_of(controller=SeenController(None, "never elected", 0.0)),
        ["no controller was ever elected"],
    ),
    "a controller that is gone": (state_of(controller=GONE), ["no controller is active: c renewed its lease 40 s ago"]),
    "one that has resigned": (
        state_of(controller=SeenController(Lease("c", 3, resigned=True), "resigned", 0.0)),
        ["no controller is active: c has resigned"],
    ),
    "a dead broker": (
        state_of(brokers=(broker(1), broker(2, "dead", 312.0))),
        ["broker 2 is dead: its last heartbeat was 5 min ago"],
    ),
    "a root that fails": (
        state_of(brokers=(broker(1), broker(2, "storage error", error="disk full"))),
        ["broker 2: its storage fails: disk full"],
    ),
    "a root that cannot be read from here": (
        state_of(rows={2: "KafkaStorageException: no credentials"}),
        ["the root of broker 2 cannot be read here: KafkaStorageException: no credentials"],
    ),
    "no leader": (state_of(replace(LED, leader=-1, isr=(2,))), ["1 partition is offline: t-0"]),
    "one replica out of sync": (state_of(replace(LED, isr=(1,))), ["1 partition is under-replicated: t-0"]),
    "too few in sync": (
        state_of(replace(LED, isr=(1,)), least=2),
        ["1 partition is under min ISR: t-0", "1 partition is under-replicated: t-0"],
    ),
    "many": (
        state_of(*(replace(LED, partition=number, isr=(1,)) for number in range(12))),
        ["12 partitions are under-replicated: t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7, t-8, t-9 and 2 more"],
    ),
    "a fetcher that fails": (
        state_of(
            LED, replace(LED, partition=1),
            rows={2: [row(2, state="Delayed", error="OSError: away", partition=n) for n in (0, 1)]},
        ),
        ["replicas of broker 2 are Delayed: OSError: away: t-0, t-1"],
    ),
    "a broken file": (
        state_of(LED, rows={1: [row(1, "leader", state="Offline", error="rot")]}),
        ["replicas of broker 1 are Offline: rot: t-0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("state", "lines"), CASES.values(), ids=CASES)
def test_each_problem_is_a_line_and_has_something_to_do(state: ClusterState, lines: list[str]) -> None:
    assert what(state) == lines
    assert all(problem.do and not problem.do.endswith(".") for problem in found_in(state))


def test_le_02_offline_partitions_that_several_brokers_had_in_sync_are_advised_on_in_the_plural() -> None:
    found = found_in(state_of(replace(LED, leader=-1, isr=(1, 2)), brokers=(broker(1), broker(2))))
    do = "brokers 1 and 2 were in sync last, and have lost their logs or wait for a controller. Without that log, "
    assert [problem.do[: len(do)] for problem in found if "offline" in problem.what] == [do]


@pytest.mark.parametrize(
    ("brokers", "do"),
    [
        ((broker(1), broker(2, "dead")), "start broker 2: the last in sync. If that is lost for good, "),
        ((broker(1), broker(2, "stopped")), "start broker 2: the last in sync. If that is lost for good, "),
        ((broker(1), broker(2)), "broker 2 was in sync last, and has lost its log or waits for a controller. "),
    ],
)
def test_le_02_an_offline_partition_advises_to_start_the_last_broker_in_sync(
    brokers: tuple[SeenBroker, ...], do: str
) -> None:
    found = found_in(state_of(replace(LED, leader=-1, isr=(2,)), brokers=brokers))
    assert [problem.do[: len(do)] for problem in found if "offline" in problem.what] == [do]


ROT = {2: [row(2, state="Offline", error="rot")]}
OFFLINE = replace(LED, leader=-1)
COMMANDS = {
    "no broker": (state_of(brokers=()), "broker --cluster /lake/cluster --broker-id 1 --root URI"),
    "a dead broker": (
        state_of(brokers=(broker(1), broker(2, "dead"))), "broker --cluster /lake/cluster --broker-id 2 --root /2"
    ),
    "no controller": (state_of(controller=GONE), "controller --cluster /lake/cluster"),
    "a broken file": (state_of(LED, rows=ROT), "dump-log --root /2 --verify"),
    "one offline partition": (
        state_of(OFFLINE),
        "leader-election --cluster /lake/cluster --election-type unclean --topic t --partition 0",
    ),
    "some offline partitions": (
        state_of(OFFLINE, replace(OFFLINE, partition=1)),
        "leader-election --cluster /lake/cluster --election-type unclean --all-topic-partitions",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("state", "command"), COMMANDS.values(), ids=COMMANDS)
def test_an_advised_command_has_the_program_and_the_cluster_as_called(state: ClusterState, command: str) -> None:
    (problem,) = found_in(state)
    assert f"`lakelog {command}`" in problem.do
    (problem,) = problems(state, Invocation("./spark-submit.sh", "/lake/cluster"))
    assert f"`./spark-submit.sh {command}`" in problem.do
    (problem,) = problems(state, Invocation("lakelog", None))
    assert f"`lakelog {command.replace(' --cluster /lake/cluster', '')}`" in problem.do


def test_a_problem_has_the_names_of_all_its_partitions() -> None:
    (problem,) = found_in(state_of(*(replace(LED, partition=number, isr=(1,)) for number in range(12))))
    assert problem == Problem(
        "12 partitions are under-replicated", tuple(f"t-{number}" for number in range(12)),
        "broker 2 is not in sync: start it if it is dead",
    )  # fmt: skip


def test_a_dead_broker_without_replicas_may_be_removed() -> None:
    brokers = (broker(1), broker(2, "dead", 60.0), broker(3, "dead", 60.0))
    advice = [problem.do for problem in found_in(state_of(LED, brokers=brokers)) if "is dead" in problem.what]
    start = "start it again: `lakelog broker --cluster /lake/cluster --broker-id"
    assert advice == [
        f"{start} 2 --root /2`",
        f"{start} 3 --root /3`; if it is gone for good, remove it: "
        "`lakelog brokers --cluster /lake/cluster --unregister 3`",
    ]


def test_several_brokers_are_a_list_in_a_sentence() -> None:
    few = replace(LED, replicas=(1, 2, 3, 4), isr=(1,))
    assert [problem.do for problem in found_in(state_of(few, least=2))] == [
        "they refuse acks=all until brokers 2, 3 and 4 are in sync again",
        "brokers 2, 3 and 4 are not in sync: start those that are dead",
    ]


def test_ft_08_a_broker_has_its_lag_unless_that_is_not_known() -> None:
    two = (LED, replace(LED, partition=1))
    rows = {1: [row(1, "leader", lag=None)], 2: [row(2, lag=5), row(2, lag=7, error="slow", partition=1)]}
    three = (broker(1), broker(2), broker(3, "dead", 60.0))
    found = broker_figures(state_of(*two, brokers=three, rows=rows))
    assert [tuple(figures) for figures in found] == [
        (1, "alive", 1.0, 2, 0, 0, 0),
        (2, "alive", 1.0, 0, 2, 12, 1),
        (3, "dead", 60.0, 0, 0, None, 0),
    ]
    rows[2][0] = row(2, lag=None)
    assert broker_figures(state_of(*two, rows=rows))[1].lag is None


def test_the_first_lines_have_the_figures() -> None:
    offline, alone = replace(LED, leader=-1, isr=(2,)), replace(LED, partition=1, isr=(1,))
    brokers = (broker(1), broker(2, "dead", 60.0), broker(3, "stopped", 9.0))
    assert summary(state_of(offline, alone, LED, brokers=brokers, least=2)) == {
        "controller": "active: c, controller epoch 3, lease renewed 1 s ago",
        "brokers": "1 of 3 alive, 2 is dead, 3 is stopped",
        "partitions": "3, 1 offline, 1 under-replicated, 1 under min ISR",
    }
    assert summary(state_of(controller=GONE))["controller"] == "gone: c, controller epoch 3"
