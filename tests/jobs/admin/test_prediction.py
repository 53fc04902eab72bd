"""What `what-if` says of each partition, as tables of cases: one partition on brokers 1, 2 and 3, led by 1."""

from dataclasses import replace
from typing import Any

import pytest

from lakelog.jobs.admin.prediction import Change, Forecast, Loss, change_row, counts, failover_delays
from lakelog.replication.config import Config
from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from tests.controller.contexts import context, partition, tp

UNCLEAN = {"unclean.leader.election.enable": "true"}
TWO, THREE = {"min.insync.replicas": "2"}, {"min.insync.replicas": "3"}
NOBODY = frozenset[int]()


def loss(
    killed: tuple[int, ...] = (), stopped: tuple[int, ...] = (), emptied: tuple[int, ...] = (), can_commit: bool = True
) -> Loss:  # fmt: skip
    return Loss(frozenset({*killed, *emptied}), frozenset(stopped), frozenset(emptied), can_commit)


def row(broker: int, end: int, high_watermark: int = 8, number: int = 0) -> ReplicaStatus:
    role = LEADER_ROLE if broker == 1 else FOLLOWER_ROLE
    return ReplicaStatus(
        "flights", "flights-id", number, broker, 1, 5, role, "Fetching", 0, end, min(end, high_watermark), (), None, 0
    )


def tables(*rows: ReplicaStatus) -> dict[int, Any]:
    return {broker: {r.topic_id_partition: r for r in rows if r.broker_id == broker} for broker in (1, 2, 3)}


ROWS = tables(row(1, 10), row(2, 8), row(3, 5))  # the HW is 8


def changes(given: Any, lost: Loss, rows: Any = ROWS) -> list[Change]:
    return Forecast(replace(given, registered=frozenset({1, 2, 3})), lost).changes(rows)


# What is lost of which partition; then the outcome, the leader, records at risk, whether they are lost, and the reason.
CASES: dict[str, tuple[Any, Loss, tuple[object, ...]]] = {
    "the leader is killed": (context(partition()), loss((1,)), ("new leader", 2, 0, False, "")),
    "a follower is killed": (context(partition()), loss((2,)), ("smaller ISR", 1, 0, False, "")),
    "the leader is stopped": (context(partition()), loss(stopped=(1,)), ("new leader", 2, 0, False, "")),
    "min ISR is 2 of 3, and two are killed": (
        context(partition(), configs=TWO), loss((1, 2)),
        ("under min ISR", 3, 0, False, "1 in sync, and acks=all needs 2")),
    "min ISR is 2 of 3, and one is killed": (
        context(partition(), configs=TWO), loss((3,)), ("smaller ISR", 1, 0, False, "")),
    "min ISR is 3 of 3": (
        context(partition(), configs=THREE), loss((3,)),
        ("under min ISR", 1, 0, False, "2 in sync, and acks=all needs 3")),
    "min ISR is above the number of replicas": (
        context(partition((1, 2)), configs=THREE), loss((2,)),
        ("under min ISR", 1, 0, False, "1 in sync, and acks=all needs 2")),
    "it is under min ISR already": (
        context(partition(isr=(1, 2)), configs=THREE), loss((2,)), ("smaller ISR", 1, 0, False, "")),
    "of the ISR one is killed, and one is stopping": (
        context(partition(isr=(1, 2)), shutting_down=(1,)), loss((2,)),
        ("offline", None, 0, False,
         "broker 1 stops, or has a broken file of it, and nobody else is left who was in sync; an unclean election of "
         "broker 3 loses 3 records")),
    "all of the ISR are killed": (
        context(partition(isr=(1, 2))), loss((1, 2)),
        ("offline", None, 3, False,
         "brokers 1 and 2 alone were in sync; an unclean election of broker 3 loses 3 records")),
    "the roots of all of the ISR are lost": (
        context(partition(isr=(1, 2))), loss(emptied=(1, 2)),
        ("offline", None, 3, True,
         "brokers 1 and 2 alone were in sync; an unclean election of broker 3 loses 3 records")),
    "of the ISR one root is lost, and one broker is killed": (
        context(partition(isr=(1, 2))), loss((2,), emptied=(1,)),
        ("offline", None, 3, False,
         "brokers 1 and 2 alone were in sync; an unclean election of broker 3 loses 3 records")),
    "all replicas are killed": (
        context(partition()), loss((1, 2, 3)), ("offline", None, 8, False, "no replica is left")),
    "the only one in sync is stopped": (
        context(partition(isr=(1,))), loss(stopped=(1,)),
        ("offline", None, 0, False, "broker 1 alone was in sync; an unclean election of broker 2 loses 0 records")),
    "an unclean election is allowed": (
        context(partition(isr=(1, 2)), configs=UNCLEAN), loss((1, 2)),
        ("unclean leader", 3, 3, True, "unclean.leader.election.enable is true, and nobody is left who was in sync")),
    "the root of a broker that is dead already is lost": (
        context(partition(leader=-1, isr=(1,)), live=(2, 3)), loss(emptied=(1,)),
        ("offline", None, 0, False, "broker 1 alone was in sync; an unclean election of broker 2 loses 0 records")),
    "no majority of the cluster roots is left, and the leader is killed": (
        context(partition()), loss((1,), can_commit=False),
        ("offline", None, 0, False,
         "its leader is gone, and without a majority of the cluster roots nobody is elected")),
    "no majority of the cluster roots is left, and a follower is killed": (
        context(partition()), loss((2,), can_commit=False),
        ("acks=all waits", 1, 0, False,
         "its ISR keeps broker 2: without a majority of the cluster roots no ISR changes")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_partition(case: str) -> None:
    given, lost, then = CASES[case]
    (found,) = changes(given, lost)
    told = change_row(found)
    assert (*(told[name] for name in ("outcome", "new_leader", "at_risk", "is_lost", "why")),) == then


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        (context(partition()), loss((4,))),  # it holds nothing
        (context(partition(leader=2, isr=(2, 3)), live=(2, 3)), loss((1,))),  # it is dead already
        (context(partition(leader=-1, isr=(1,)), live=(2, 3)), loss((3,))),  # without a leader already
        (context(partition()), loss(can_commit=False)),
        (context(partition(), deleting=("flights",)), loss((1,))),
        (context(), loss((1,))),
    ],
)
def test_what_does_not_change_is_left_out(given: Any, lost: Loss) -> None:
    assert changes(given, lost) == []


def test_a_broker_that_lost_its_log_does_not_count_as_in_sync() -> None:
    given = context(partition(isr=(1, 2)))
    emptied = {**given.brokers, 2: BrokerView(2, log_epoch=2)}
    (found,) = changes(replace(given, brokers=emptied), loss((1,)), tables(row(1, 10), row(2, 0), row(3, 5)))
    assert (found.outcome, found.at_risk) == ("offline", 3)
    assert found.why.startswith("broker 2 has lost its log, and nobody else is left who was in sync")


def test_records_that_acks_1_has_acknowledged() -> None:
    """Broker 1 has 10 records, its followers 8."""
    (found,) = changes(context(partition()), loss((1,)))
    assert (change_row(found)["acks_1_at_risk"], counts([found])["uncommitted_records"]) == (2, 2)


@pytest.mark.parametrize(
    ("lost", "isr", "at_risk"),
    [(loss((1,)), (1, 2, 3), 0), (loss((2,)), (1, 2, 3), 0), (loss((1,)), (1,), None)],
)
def test_without_rows_it_is_not_known_what_is_at_risk_where_nobody_is_in_sync(
    lost: Loss, isr: tuple[int, ...], at_risk: int | None
) -> None:
    (found,) = changes(context(partition(isr=isr)), lost, {1: "KafkaStorageException: away", 2: {}})
    assert found.at_risk == at_risk
    assert counts([found])["unknown"] == (at_risk is None)


def test_the_worst_come_first() -> None:
    given = context(
        partition(number=0), partition((1, 2), isr=(1,), number=1), partition((1, 2), isr=(1,), number=2),
        partition((2, 1), number=3), partition((1, 3), number=4, topic="boats"), configs=TWO,
    )  # fmt: skip
    rows = tables(
        *(row(b, end, number=n) for n, ends in enumerate(((9, 9), (9, 8), (9, 3))) for b, end in enumerate(ends, 1))
    )
    found = changes(given, loss((1,)), rows)
    assert [(change.now.name, change.outcome, change.at_risk) for change in found] == [
        ("flights-2", "offline", 5), ("flights-1", "offline", 0), ("boats-4", "under min ISR", 0),
        ("flights-3", "under min ISR", 0), ("flights-0", "new leader", 0),
    ]  # fmt: skip
    assert counts(found) == {
        "offline": 2, "unclean_leader": 0, "under_min_isr": 2, "acks_all_waits": 0, "new_leader": 2, "smaller_isr": 3,
        "records_at_risk": 5, "records_lost": 0, "uncommitted_records": 2, "unknown": 0,
    }  # fmt: skip


def test_what_a_controller_has_yet_to_decide_is_told_apart() -> None:
    """Broker 1 has died a moment ago, so that flights-0 has another leader anyway."""
    partitions = partition(), partition((2, 3), number=1), partition((1,), number=2)
    given = context(*partitions, live=(2, 3), registered=(1, 2, 3))
    forecast = Forecast(given, loss((2,)))
    assert [r.name for r in forecast.due_anyway] == ["flights-0", "flights-2"]
    assert [r.name for r in forecast.offline_anyway] == ["flights-2"]
    assert [r.topic_id_partition for r in forecast.changed] == [tp(0), tp(1)]


@pytest.mark.parametrize(("is_local", "delays"), [(True, [6000, 150]), (False, [18000, 4500, 5000, 150])])
def test_how_long_until_there_is_a_new_leader(is_local: bool, delays: list[int]) -> None:
    found = failover_delays(Config().with_sessions(is_local), in_store=not is_local)
    assert [delay.ms for delay in found] == delays
