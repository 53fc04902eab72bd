"""Tables in memory behave as Delta tables do: compare-and-set, every version readable."""

import pytest

from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, Role
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.verification.simulation.simulated_tables import (
    NewBatch,
    SimulatedLogChange,
    SimulatedLogState,
    VersionedTable,
    replay,
)

P0 = TopicIdPartition("t1", 0)


def batch(base: int, values: tuple[int, ...], epoch: int = 0, sequence: int = 0) -> NewBatch:
    header = BatchHeader("numbers", "t1", 0, epoch, base, base + len(values) - 1, 0, len(values), 7, 0, sequence)
    return NewBatch(header, f"s{base}-{epoch}", values)


@pytest.mark.parametrize(("expected", "wins"), [(0, False), (1, True), (2, False)])
def test_a_commit_wins_right_after_the_newest_version_only(expected: int, wins: bool) -> None:
    table = VersionedTable("numbers", "zero")
    assert table.commit(0, "one", step=5)
    assert table.commit(expected, "two", step=9) is wins
    assert table.at(table.newest) == ("two" if wins else "one")
    assert table.at(0) == "zero"


@pytest.mark.parametrize(("step", "version"), [(0, 0), (4, 0), (5, 1), (8, 1), (9, 2), (100, 2)])
def test_a_late_answer_is_what_was_newest_then(step: int, version: int) -> None:
    table = VersionedTable("numbers", "zero")
    table.commit(0, "one", step=5)
    table.commit(1, "two", step=9)
    assert table.version_at(step) == version


def test_a_commit_leaves_older_versions_as_they_were() -> None:
    before = replay(SimulatedLogState(-1, {}), SimulatedLogChange((batch(0, (1, 2)),), roles={P0: Role(0, LEADER)}))
    after = replay(before, SimulatedLogChange(drops={P0: frozenset({"s0-0"})}, roles={P0: Role(1, FOLLOWER)}, claim=3))
    assert (before.partition(P0).log_end_offset, before.partition(P0).role) == (2, Role(0, LEADER))
    assert (after.partition(P0).log_end_offset, after.partition(P0).role, after.broker_epoch) == (
        0,
        Role(1, FOLLOWER),
        3,
    )


def test_a_leaders_epoch_starts_at_its_log_end() -> None:
    log = replay(SimulatedLogState(-1, {}), SimulatedLogChange((batch(0, (1, 2)),)))
    assert replay(log, SimulatedLogChange(roles={P0: Role(4, LEADER)})).partition(P0).epoch_start == 2


def test_a_claim_never_falls() -> None:
    assert replay(SimulatedLogState(5, {}), SimulatedLogChange(claim=4)).broker_epoch == 5
