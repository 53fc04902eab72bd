"""Producers, brokers without Spark and controllers on real tables over a store that has faults: nothing acknowledged is
lost or doubled, and all replicas are equal in the end. `python -m tests.faults --seeds 1000` tries more."""

import pytest

from tests.faults.check import run


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_nothing_acknowledged_is_lost_or_doubled(seed, root):
    world = run(root, seed)
    assert any(sent.is_acknowledged for client in world.clients for sent in client.sent)
    assert len(world.store.counts) > 2, "few kinds of faults have occurred"


def test_a_seed_tells_all_that_happens(tmp_path):
    first, second = (run(tmp_path / name, 7, steps=8) for name in ("first", "second"))
    assert first.trace == second.trace
