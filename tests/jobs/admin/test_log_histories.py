"""Compares the replicas of a partition by their chains, as far as both logs go."""

import pytest

from lakelog.jobs.log_dirs import DIFFERS, SAME, same_history
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, PartitionLog, Role
from lakelog.replication.protocol.record_batch import BatchHeader


def log(*digests: str, leads: bool = False, start: int = 0) -> PartitionLog:
    """A batch of ten records for each digest; what ends at or before `start` has been deleted."""
    whole = PartitionLog(role=Role(3, LEADER if leads else FOLLOWER))
    for number, digest in enumerate(digests):
        header = BatchHeader("t", "id", 0, 3, 10 * number, 10 * number + 9, 0, 0, digest=digest)
        whole.add(linked(header, whole.log_end.chain), f"segment-{number}")
    whole.drop({f"segment-{number}" for number in range(start // 10)})
    whole.start_at(start)
    return whole


@pytest.mark.parametrize(
    ("follower", "expected"),
    [
        pytest.param(log("a", "b", "c"), SAME, id="all of it"),
        pytest.param(log("a", "b"), SAME, id="behind, and the same so far"),
        pytest.param(log(), SAME, id="nothing yet"),
        pytest.param(log("a", "b", "c", "d"), SAME, id="further than the leader"),
        pytest.param(log("a", "x", "c"), DIFFERS, id="another batch in the middle"),
        pytest.param(log("x"), DIFFERS, id="behind, and another batch"),
        pytest.param(log("a", "b", "x", "d"), DIFFERS, id="further, and another batch"),
        pytest.param(log("a", "b", "c", start=20), SAME, id="its beginning was deleted"),
        pytest.param(log("a", "b", "c", "d", "e", start=40), None, id="it begins where the leader's has ended"),
    ],
)
def test_a_replica_has_the_history_of_its_leader_or_another(follower: PartitionLog, expected: str | None) -> None:
    assert same_history({1: log("a", "b", "c", leads=True), 2: follower}) == {1: SAME, 2: expected}


def test_without_a_leader_the_longest_log_is_the_measure() -> None:
    assert same_history({1: log("a"), 2: log("a", "b"), 3: log("x")}) == {1: SAME, 2: SAME, 3: DIFFERS}
