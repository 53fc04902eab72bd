"""When a log is cleaned, how far, and when a tombstone may go."""

from dataclasses import replace

import pytest

from lakelog.replication.protocol.log_cleaner import CleanerConfig, delete_horizon, log_to_clean, may_lose_tombstones
from lakelog.replication.protocol.log_retention import retention_offset
from lakelog.replication.protocol.partition_log import LEADER, PartitionLog, Role
from lakelog.replication.protocol.record_batch import BatchHeader, OffsetRange, Retained

MS, NEVER = 1000, 2**63 - 1
NOW = 100 * MS
ALWAYS = CleanerConfig(0.0, 0, NEVER, 10)


def header(base, written_at=10, cleaned=None):
    return BatchHeader("t", "id", 0, 3, base, base + 9, written_at * MS, 100, cleaned=cleaned)


def log_of(*batches, start=0, cleaned_to=0, left=None):
    """Batches of 10 records of 100 bytes, written at these times in ms; `left`: the bytes of those that are clean."""
    log = PartitionLog(log_start_offset=start, role=Role(3, LEADER), cleaned_to=cleaned_to)
    for number, written_at in enumerate(batches):
        is_clean = left is not None and number * 10 < cleaned_to
        log.add(header(number * 10, written_at, Retained(1, left, "d") if is_clean else None), f"segment-{number}")
    return log


@pytest.mark.parametrize(
    ("log", "high_watermark", "config", "dirty"),
    [
        pytest.param(log_of(10, 20, 30), 30, ALWAYS, (0, 30), id="all of it"),
        pytest.param(log_of(10, 20, 30), 29, ALWAYS, (0, 20), id="HW-01: not what is not committed"),
        pytest.param(log_of(10, 20, 30), 0, ALWAYS, None, id="nothing is committed"),
        pytest.param(log_of(), 0, ALWAYS, None, id="an empty log"),
        pytest.param(log_of(10, 20, 30, cleaned_to=20), 30, ALWAYS, (20, 30), id="from where it was cleaned"),
        pytest.param(log_of(10, 20, 30, cleaned_to=30), 30, ALWAYS, None, id="it is clean"),
        pytest.param(log_of(10, 20, start=15, cleaned_to=10), 20, ALWAYS, (15, 20), id="from the log start"),
        pytest.param(log_of(10, 20, cleaned_to=40), 20, ALWAYS, (0, 20), id="beyond its end is not known"),
        pytest.param(log_of(10, 81, 30), 30, replace(ALWAYS, min_compaction_lag_ms=20), (0, 10), id="young ones wait"),
        pytest.param(log_of(10, 80, 30), 30, replace(ALWAYS, min_compaction_lag_ms=20), (0, 30), id="old enough"),
        pytest.param(log_of(10, 99 * 10**9), 20, ALWAYS, (0, 20), id="without a lag the clock does not matter"),
        pytest.param(log_of(10, 10), 20, replace(ALWAYS, min_cleanable_dirty_ratio=1.0), None, id="never by the ratio"),
        pytest.param(
            log_of(10, 10, cleaned_to=10), 20, replace(ALWAYS, min_cleanable_dirty_ratio=0.5), None, id="at the ratio"
        ),
        pytest.param(
            log_of(10, 10, cleaned_to=10, left=99), 20, replace(ALWAYS, min_cleanable_dirty_ratio=0.5), (10, 20),
            id="above it, by what is left",
        ),
        pytest.param(
            log_of(10, 40, cleaned_to=10), 20, CleanerConfig(1.0, 0, 59, 10), (10, 20), id="a dirty one is too old"
        ),
        pytest.param(log_of(10, 40, cleaned_to=10), 20, CleanerConfig(1.0, 0, 60, 10), None, id="not yet"),
    ],
)  # fmt: skip
def test_lc_01_what_is_cleaned_and_when(log, high_watermark, config, dirty):
    found = log_to_clean(log, high_watermark, NOW, config)
    assert (found and found.dirty) == (dirty and OffsetRange(*dirty))
    assert found is None or found.log_start == log.log_start_offset


DIRTY = OffsetRange(10, 30)


@pytest.mark.parametrize(
    ("batch", "has_tombstones", "horizon"),
    [
        pytest.param(header(10), True, NOW + 10 * MS, id="from the first cleaning on"),
        pytest.param(header(5), True, NOW + 10 * MS, id="of a batch that is dirty in part"),
        pytest.param(header(10), False, -1, id="no tombstone"),
        pytest.param(header(0), True, -1, id="its keys were not looked for"),
        pytest.param(header(10, cleaned=Retained(1, 1, "d", 7)), True, 7, id="it stays as it is"),
        pytest.param(header(0, cleaned=Retained(1, 1, "d", 7)), True, 7, id="also where the log is clean"),
        pytest.param(header(0, cleaned=Retained(1, 1, "d", 7)), False, -1, id="the last one has gone"),
    ],
)
def test_lc_01_from_when_on_tombstones_may_go(batch, has_tombstones, horizon):
    assert delete_horizon(batch, has_tombstones, DIRTY, NOW, 10) == horizon
    assert delete_horizon(header(10), True, DIRTY, NOW, NEVER) == NEVER


@pytest.mark.parametrize(
    ("cleaned", "may_go"),
    [
        (None, False),
        (Retained(1, 1, "d"), False),
        (Retained(1, 1, "d", NOW), True),
        (Retained(1, 1, "d", NOW + 1), False),
    ],
)
def test_lc_01_whether_tombstones_may_go(cleaned, may_go):
    assert may_lose_tombstones(header(0, cleaned=cleaned), NOW) == may_go


def test_lc_01_dr_01_retention_by_size_counts_what_is_left():
    assert retention_offset(log_of(10, 10, 10, cleaned_to=20, left=1), 30, NOW, -1, 100) == 20
    assert retention_offset(log_of(10, 10, 10, cleaned_to=20, left=1), 30, NOW, -1, 101) == 10


@pytest.mark.parametrize(
    ("gone", "end"), [((), 30), ((0,), 30), ((10,), 10), ((20,), 20), ((0, 20), 20), ((0, 10, 20), 5)]
)
def test_lc_01_how_far_a_log_goes_without_some_batches(gone, end):
    assert log_of(10, 20, 30, start=5).end_without(gone) == end


@pytest.mark.parametrize(
    ("cleaned", "start", "stop", "expected"),
    [
        (None, 10, 20, (10, 100)),
        (None, 0, 99, (10, 100)),
        (None, 15, 99, (5, 50)),
        (None, 20, 30, (0, 0)),
        (None, 0, 10, (0, 0)),
        (Retained(4, 20, "d"), 10, 20, (4, 20)),
        (Retained(4, 20, "d"), 15, 20, (2, 10)),
        (Retained(0, 0, "d"), 10, 20, (0, 0)),
    ],
)
def test_lc_01_a_part_of_a_batch_counts_in_proportion(cleaned, start, stop, expected):
    assert header(10, cleaned=cleaned).retained_within(OffsetRange(start, stop)) == expected
