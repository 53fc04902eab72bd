"""Which records are deleted by age, by size and by request: never uncommitted ones."""

import itertools

import pytest

from lakelog.replication.errors import NotLeaderOrFollowerException, OffsetOutOfRangeException, PolicyViolationException
from lakelog.replication.protocol.log_retention import (
    delete_records_offset,
    follower_log_start,
    low_watermark,
    retention_offset,
)
from lakelog.replication.protocol.partition_log import FOLLOWER, LEADER, STOPPED, PartitionLog, Role
from lakelog.replication.protocol.record_batch import BatchHeader

MS = 1000
NOW = 100 * MS


def log_of(*batches, start=0):
    """Batches of 10 records of 100 bytes each, written at these times in ms."""
    log = PartitionLog(log_start_offset=start, role=Role(3, LEADER))
    for number, written_at in enumerate(batches):
        base = number * 10
        log.add(BatchHeader("t", "id", 0, 3, base, base + 9, written_at * MS, 100), f"segment-{number}")
    return log


@pytest.mark.parametrize(
    ("written_at", "retention_ms", "high_watermark", "start"),
    [
        pytest.param((10, 20, 30), 60, 30, 30, id="all are too old"),
        pytest.param((10, 20, 90), 60, 30, 20, id="the youngest stays"),
        pytest.param((10, 40, 90), 60, 30, 10, id="at the limit is not beyond it"),
        pytest.param((90, 10, 20), 60, 30, 0, id="a younger one before them protects them"),
        pytest.param((10, 20, 30), 60, 20, 20, id="HW-01: what is not committed stays"),
        pytest.param((10, 20, 30), 60, 19, 10, id="a batch that is committed in part stays"),
        pytest.param((10, 20, 30), -1, 30, 0, id="no limit"),
        pytest.param((10, 20, 30), 0, 30, 30, id="nothing is kept"),
        pytest.param((), 60, 0, 0, id="an empty log"),
    ],
)
def test_dr_01_retention_deletes_batches_by_the_age_of_their_youngest_record(
    written_at, retention_ms, high_watermark, start
):
    assert retention_offset(log_of(*written_at), high_watermark, NOW, retention_ms, -1) == start


@pytest.mark.parametrize(
    ("retention_bytes", "start"), [(-1, 0), (0, 30), (1, 20), (99, 20), (100, 20), (101, 10), (299, 0), (300, 0)]
)
def test_dr_01_retention_deletes_batches_above_the_size_limit(retention_bytes, start):
    assert retention_offset(log_of(90, 90, 90), 30, NOW, -1, retention_bytes) == start


def test_dr_01_retention_deletes_a_batch_beyond_either_limit():
    assert retention_offset(log_of(10, 90, 90), 30, NOW, 60, 200) == 10
    assert retention_offset(log_of(10, 10, 90), 30, NOW, 60, 250) == 20
    assert retention_offset(log_of(90, 90, 90), 30, NOW, 60, 100) == 20


@pytest.mark.parametrize("start", [10, 15])
def test_dr_01_deleted_batches_do_not_count_towards_the_size(start):
    """Two batches and a part of one are left. Batches are removed whole, so the log start may be within one."""
    assert retention_offset(log_of(90, 90, 90, start=start), 30, NOW, -1, 200) == start
    assert retention_offset(log_of(90, 90, 90, start=start), 30, NOW, -1, 100) == 20


def test_dr_01_a_log_start_never_falls():
    for start, high_watermark, retention in itertools.product((0, 5, 10, 30), (0, 10, 30), (-1, 0, 150)):
        log = log_of(10, 20, 90, start=start)
        assert retention_offset(log, max(start, high_watermark), NOW, 60, retention) >= start


@pytest.mark.parametrize(
    ("before", "start"), [(0, 5), (5, 5), (7, 7), (20, 20), (-1, 20)], ids=lambda value: f"{value}"
)
def test_dr_01_the_log_start_rises_to_the_offset_and_minus_one_is_the_hw(before, start):
    assert delete_records_offset(log_of(10, 20, 30, start=5), 3, 20, before, True, "t-0") == start


@pytest.mark.parametrize("before", [-2, 21, 30])
def test_dr_01_records_above_the_hw_cannot_be_deleted(before):
    with pytest.raises(OffsetOutOfRangeException, match=rf"t-0: records before offset {before} .* 0 to 20"):
        delete_records_offset(log_of(10, 20, 30), 3, 20, before, True, "t-0")


@pytest.mark.parametrize("role", [Role(2, LEADER), Role(4, LEADER), Role(3, FOLLOWER), Role(3, STOPPED)])
def test_dr_01_only_a_leader_deletes_records(role):
    log = log_of(10)
    log.role = role
    with pytest.raises(NotLeaderOrFollowerException, match="t-0: the log does not lead under leader epoch 3"):
        delete_records_offset(log, 3, 10, 5, True, "t-0")


def test_dr_01_a_topic_without_limits_deletes_nothing():
    with pytest.raises(PolicyViolationException, match=r"t-0: cleanup\.policy lacks delete"):
        delete_records_offset(log_of(10), 3, 10, 5, False, "t-0")


@pytest.mark.parametrize(
    ("own_start", "own_end", "leader_start", "start"),
    [(0, 10, 5, 5), (0, 10, 0, 0), (7, 10, 5, 7), (0, 3, 5, 3), (5, 5, 9, 5), (0, 10, 10, 10)],
)
def test_dr_02_a_follower_starts_where_its_leader_does_as_far_as_it_goes(own_start, own_end, leader_start, start):
    assert follower_log_start(own_start, own_end, leader_start) == start


def test_dr_02_the_low_watermark_is_the_least_log_start():
    assert [low_watermark(starts) for starts in ([5], [5, 3, 9], [0, 0])] == [5, 3, 0]
