"""A soak's plan of faults: the same for the same seed, with every kind, spread over the time."""

import argparse
from itertools import pairwise

import pytest

from lakelog.replication.config import Config, Owner
from lakelog.verification.faults.soak_plan import KINDS, Fault, kinds_of, plan_faults
from lakelog.verification.faults.soak_run import SETTINGS

BROKERS, STORED = (1, 2, 3), 3
OF_CLUSTER = ["empty-cluster-root", "older-cluster-root", "other-cluster-root"]
OF_SEVERAL = ["lose-cluster-root", "new-cluster-root"]
OF_SEVERAL_IN_STORES = [*OF_SEVERAL, "hang-cluster-root"]
OF_ONE = [kind for kind in KINDS if kind not in OF_SEVERAL_IN_STORES]


def plan(seed: int, seconds: float, faults: int) -> tuple[Fault, ...]:
    return plan_faults(seed, seconds, faults, BROKERS, [STORED])


def test_the_same_seed_makes_the_same_plan_and_another_one_another() -> None:
    assert plan(7, 2400, 100) == plan(7, 2400, 100)
    assert plan(7, 2400, 100) != plan(8, 2400, 100)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_occurs_about_equally_often(seed: int) -> None:
    kinds = [fault.kind for fault in plan(seed, 2400, 100)]
    assert set(kinds) == set(OF_ONE)
    assert {kinds.count(kind) for kind in OF_ONE} <= {4, 5}
    assert set(kinds[: len(OF_ONE)]) == set(OF_ONE)


@pytest.mark.parametrize(("minutes", "faults"), [(40, 100), (4, 10), (1, 1)])
def test_they_are_spread_over_the_time(minutes: int, faults: int) -> None:
    """Each begins in the first half of a part of its own."""
    seconds = minutes * 60
    part = seconds / faults
    moments = [fault.at_s for fault in plan(3, seconds, faults)]
    assert len(moments) == faults
    assert all(part * n - 0.1 <= at <= part * (n + 0.5) + 0.1 for n, at in enumerate(moments))
    assert all(one < other for one, other in pairwise(moments))


def test_every_broker_is_hit_and_every_order_occurs() -> None:
    planned = plan(5, 2400, 100)
    assert {fault.broker for fault in planned} == set(BROKERS)
    assert len({fault.brokers for fault in planned}) == 6
    assert all(sorted(fault.brokers) == [*BROKERS] for fault in planned)


def test_each_lasts_as_long_as_its_kind_says() -> None:
    planned = plan(5, 2400, 200)
    assert all(KINDS[fault.kind].shortest <= fault.lasts_s <= KINDS[fault.kind].longest for fault in planned)
    assert all(0 <= share < 1 for fault in planned for share in (fault.place, fault.extent))


@pytest.mark.parametrize("who", ["broker", "controller"])
def test_the_frozen_come_back_within_their_session_and_the_expired_after_it(who: str) -> None:
    session = SETTINGS[f"{who}.session.timeout.ms"] / 1000
    assert KINDS[f"freeze-{who}"].longest < session < KINDS[f"expire-{who}"].shortest


def test_whoever_takes_a_broker_takes_replicas() -> None:
    assert {kind for kind, found in KINDS.items() if found.takes_replica and not found.takes_broker} == {
        "reassign",
        "rot",
        "copy-broker",
        *OF_CLUSTER,
    }
    assert all(found.takes_replica for found in KINDS.values() if found.takes_broker)


@pytest.mark.parametrize("seed", range(5))
def test_disks_lose_power_and_fail_and_the_store_hangs_and_answers_errors(seed: int) -> None:
    planned = plan(seed, 2400, 100)
    hit = {kind: {fault.broker for fault in planned if fault.kind == kind} for kind in KINDS}
    assert hit["hang-store"] == hit["fail-store"] == {STORED}
    assert hit["cut-power"] | hit["unwritable-root"] <= {1, 2}
    assert {fault.broker for n in range(5) for fault in plan(n, 2400, 100) if fault.kind == "empty-root"} == {*BROKERS}


@pytest.mark.parametrize("kind", ["hang-store", "hang-cluster-root"])
def test_a_store_hangs_for_less_than_a_session_and_for_more_than_the_storage_time_out(kind: str) -> None:
    assert KINDS[kind].shortest < SETTINGS["broker.session.timeout.ms"] / 1000
    assert Config().lakelog_storage_timeout_ms / 1000 < KINDS[kind].longest


def test_kinds_may_be_chosen() -> None:
    chosen = kinds_of("rot,cut-power")
    assert {fault.kind for fault in plan_faults(1, 60, 4, BROKERS, [STORED], chosen)} == {"rot", "cut-power"}
    with pytest.raises(argparse.ArgumentTypeError, match=r"flood: unknown; allowed: kill-broker,"):
        kinds_of("rot,flood")


def test_where_all_roots_are_in_stores_no_disk_fails_and_no_cluster_root_is_replaced() -> None:
    planned = plan_faults(1, 2400, 200, BROKERS, ["cluster", *BROKERS])
    assert {fault.kind for fault in planned} == set(OF_ONE) - {"cut-power", "unwritable-root", *OF_CLUSTER}
    assert {fault.broker for fault in planned if fault.kind == "hang-store"} == set(BROKERS)


@pytest.mark.parametrize("kinds", [["cut-power"], OF_CLUSTER])
def test_kinds_that_can_hit_no_root_are_no_plan(kinds: list[str]) -> None:
    with pytest.raises(ValueError, match="no root is where these faults happen"):
        plan_faults(1, 60, 4, BROKERS, ["cluster", *BROKERS], kinds)


@pytest.mark.parametrize(
    ("stored", "kinds"),
    [
        ([STORED], {*OF_ONE, *OF_SEVERAL}),
        (["cluster", *BROKERS], {*OF_ONE, *OF_SEVERAL_IN_STORES} - {"cut-power", "unwritable-root"}),
    ],
    ids=["folders", "object stores"],
)
def test_of_several_cluster_roots_one_is_lost_and_never_all(stored: list[Owner], kinds: set[str]) -> None:
    planned = plan_faults(1, 2400, 200, BROKERS, stored, cluster_roots=3)
    assert {fault.kind for fault in planned} == kinds - {*OF_CLUSTER}


def test_the_only_cluster_root_is_none_of_several() -> None:
    with pytest.raises(ValueError, match="no root is where these faults happen"):
        plan_faults(1, 60, 4, BROKERS, [STORED], OF_SEVERAL)
