"""Shipped clients, brokers and controllers on all of `storage`, over a store in memory that has faults: nothing that
was acknowledged is lost or doubled, and all replicas are equal in the end."""

import pytest

from replication.simulation.stack.history import run


@pytest.mark.parametrize("first", range(1, 101, 10))
def test_no_invariant_is_violated(first):
    histories = [run(seed) for seed in range(first, first + 10)]
    assert [str(history.violation) for history in histories if history.violation] == []
    assert sum(history.steps for history in histories) > 300


def test_a_seed_tells_all_that_happens():
    first, second = (run(7) for _ in range(2))
    assert first.trace == second.trace
    assert first.steps == second.steps
