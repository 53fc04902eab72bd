"""Shipped clients, brokers and controllers on all of `storage`, over a store in memory with faults: no acknowledged
record is lost or doubled, and all replicas are equal in the end."""

import os
import subprocess
import sys
from collections import Counter

from lakelog.verification.simulation.stack import stack_history
from lakelog.verification.simulation.stack.rates import (
    ASLEEP,
    DIES_AFTER,
    DIES_BEFORE,
    DOUBLED,
    EMPTIED,
    FROZEN,
    HANGS,
    KILLED,
    LATE,
    LITTERED,
    LOSES_END,
    LOST,
    OVERTAKEN,
    REFUSED,
    RESTORED,
    STOPPED,
    TORN,
)
from lakelog.verification.simulation.stack.stack_history import run

SCRIPT = (
    "from lakelog.verification.simulation.stack.stack_history import run; import sys; h = run(7);"
    " sys.stdout.write(repr(h))"
)


def test_a_seed_tells_all_that_happens():
    """In any process."""
    told = [
        subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": n}, capture_output=True,
                       check=True, timeout=60).stdout
        for n in ("1", "2")
    ]  # fmt: skip
    assert told[0] == told[1]
    assert b"violation=None" in told[0]


def test_faults_of_all_kinds_happen_and_records_are_acknowledged_and_no_invariant_is_violated(monkeypatch):
    acknowledged, kinds, steps, check = [], Counter(), 0, stack_history.check

    def counted(world):
        check(world)
        acknowledged.append(sum(sent.is_acknowledged for client in world.clients for sent in client.sent))

    monkeypatch.setattr(stack_history, "check", counted)
    of_commits = {LOST, REFUSED, LATE, DIES_BEFORE, DIES_AFTER, OVERTAKEN, FROZEN, HANGS}
    wanted = of_commits | {KILLED, STOPPED, LOSES_END, TORN, EMPTIED, RESTORED, ASLEEP, LITTERED, DOUBLED}
    for seed in (1, 10, 39, 7, *range(60, 120)):  # the first four have them all
        found = run(seed)
        assert found.violation is None
        kinds.update(found.faults)
        steps += found.steps
        if len(acknowledged) >= 6 and wanted <= set(kinds):
            break
    assert wanted <= set(kinds)
    assert sum(count > 0 for count in acknowledged) > len(acknowledged) * 0.6
    assert steps > 300
