"""The faults of a soak: the same of the same seed, of every kind, spread over the time."""

from itertools import pairwise

import pytest

from jobs.soak_plan import KINDS, plan_faults
from replication.config import Config

BROKERS = (1, 2, 3)


def test_the_same_seed_makes_the_same_plan_and_another_one_another() -> None:
    assert plan_faults(7, 2400, 100, BROKERS) == plan_faults(7, 2400, 100, BROKERS)
    assert plan_faults(7, 2400, 100, BROKERS) != plan_faults(8, 2400, 100, BROKERS)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_occurs_about_equally_often(seed: int) -> None:
    kinds = [fault.kind for fault in plan_faults(seed, 2400, 100, BROKERS)]
    assert set(kinds) == set(KINDS)
    assert {kinds.count(kind) for kind in KINDS} <= {7, 8}
    assert set(kinds[: len(KINDS)]) == set(KINDS)


@pytest.mark.parametrize(("minutes", "faults"), [(40, 100), (4, 10), (1, 1)])
def test_they_are_spread_over_the_time(minutes: int, faults: int) -> None:
    """Each begins in the first half of a part of its own."""
    seconds = minutes * 60
    part = seconds / faults
    moments = [fault.at_s for fault in plan_faults(3, seconds, faults, BROKERS)]
    assert len(moments) == faults
    assert all(part * n - 0.1 <= at <= part * (n + 0.5) + 0.1 for n, at in enumerate(moments))
    assert all(one < other for one, other in pairwise(moments))


def test_every_broker_is_hit_and_every_order_occurs() -> None:
    plan = plan_faults(5, 2400, 100, BROKERS)
    assert {fault.broker for fault in plan} == set(BROKERS)
    assert len({fault.brokers for fault in plan}) == 6
    assert all(sorted(fault.brokers) == [*BROKERS] for fault in plan)


def test_each_lasts_as_long_as_its_kind_says() -> None:
    plan = plan_faults(5, 2400, 200, BROKERS)
    assert all(KINDS[fault.kind].shortest <= fault.lasts_s <= KINDS[fault.kind].longest for fault in plan)
    assert all(0 <= share < 1 for fault in plan for share in (fault.place, fault.extent))


@pytest.mark.parametrize("who", ["broker", "controller"])
def test_the_frozen_come_back_within_their_session_and_the_expired_after_it(who: str) -> None:
    session = getattr(Config(), f"{who}_session_timeout_ms") / 1000
    assert KINDS[f"freeze-{who}"].longest < session < KINDS[f"expire-{who}"].shortest


def test_whoever_takes_a_broker_takes_replicas() -> None:
    assert {kind for kind, found in KINDS.items() if found.takes_replica and not found.takes_broker} == {"reassign"}
    assert all(found.takes_replica for found in KINDS.values() if found.takes_broker)
